"""One listener of a gateway: an address, a security protocol and advertised names of its own; all else is shared."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable

from telemetry.gateway.client_connection import ClientConnection, ListenerContext, SharedContext
from telemetry.gateway.listeners import BACKLOG, BrokerNode, Listeners, ListeningServer
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.tls_handshake import TlsServer
from telemetry.gateway.upstream_connection import as_protocol


class Listener(ListenerContext):
    """`new_listeners` makes its sockets; clients are sent to the addresses of these."""

    def __init__(
        self,
        shared: SharedContext,
        *,
        host: str,
        port: int,
        advertised_host: str | None,
        security: ListenerSecurity,
        new_listeners: Callable[..., Listeners],
    ) -> None:
        self.shared = shared
        self.advertised_host = advertised_host
        self.security = security
        self.address = f"{host}:{port}"
        self.listeners = new_listeners(host=host, port=port, listen=self._accept)

    async def open(self, nodes: Iterable[BrokerNode]) -> None:
        """Raises OSError, which names the address."""
        try:
            await self.listeners.open(nodes)
        except OSError as exc:
            raise OSError(f"{self.address}: {exc.strerror or exc}") from exc

    async def _accept(self, listener: socket.socket, node_id: int) -> ListeningServer:
        """Accepts the connections of a bound socket, the listener of a node."""

        def serve() -> asyncio.Protocol:
            return as_protocol(ClientConnection(self, node_id))

        if self.security.tls is None:
            return await asyncio.get_running_loop().create_server(serve, sock=listener, backlog=BACKLOG)
        return TlsServer(listener, self.security.tls, self.shared.admission, serve)
