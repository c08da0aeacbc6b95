"""A gateway's further listener: an address, a security protocol and advertised names of its own, all else shared."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable

from telemetry.gateway.client_connection import ClientConnection, ClientContext
from telemetry.gateway.listeners import BrokerNode, Listeners, ListeningServer
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.tls_handshake import TlsServer


def accepting(context: ClientContext) -> Callable[[socket.socket, int], Awaitable[ListeningServer]]:
    """What accepts the connections of a bound socket, the listener of a node, for `context`."""

    async def accept(listener: socket.socket, node_id: int) -> ListeningServer:
        def serve() -> ClientConnection:
            return ClientConnection(context, node_id)

        if context.security.tls is None:
            return await asyncio.get_running_loop().create_server(serve, sock=listener)
        return TlsServer(listener, context.security.tls, context.admission, serve)

    return accept


class FurtherListener(ClientContext):
    """Advertises its own addresses to its clients; limits and counts are those of `gateway`."""

    def __init__(
        self,
        gateway: ClientContext,
        *,
        host: str,
        port: int,
        advertised_host: str | None,
        security: ListenerSecurity,
        new_listeners: Callable[..., Listeners],
    ) -> None:
        self.cluster = gateway.cluster
        self.receiver = gateway.receiver
        self.observe = gateway.observe
        self.now_ms = gateway.now_ms
        self.limits = gateway.limits
        self.connect_timeout_s = gateway.connect_timeout_s
        self.local = gateway.local
        self.upstream_networks = gateway.upstream_networks
        self.counts = gateway.counts
        self.commit = gateway.commit
        self.clients = gateway.clients
        self.last_lost = gateway.last_lost
        self.admission = gateway.admission
        self.advertised_host = advertised_host
        self.security = security
        self._address = f"{host}:{port}"
        self.listeners = new_listeners(host=host, port=port, listen=accepting(self))

    async def open(self, nodes: Iterable[BrokerNode]) -> None:
        """Raises OSError, which names the address."""
        try:
            await self.listeners.open(nodes)
        except OSError as exc:
            raise OSError(f"{self._address}: {exc.strerror or exc}") from exc
