"""All client connections to one cluster: opened, counted, drained, closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

import structlog

from exporters.model import Connection
from telemetry.gateway.admission import Admission, AdmissionLimits, GatewayCounts
from telemetry.gateway.client_connection import ClientConnection, ClientContext
from telemetry.gateway.exchanges import Limits, LocalAnswer, Observe
from telemetry.gateway.listeners import BrokerNode, Listeners, ListeningServer
from telemetry.gateway.networks import Network
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.tls_handshake import TlsServer
from telemetry.gateway.timeouts import TimedConnection, enforce_timeouts
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.receiver import TelemetryReceiver

log = structlog.get_logger(__name__)

_PLAINTEXT = ListenerSecurity()


class Gateway(ClientContext):
    """All client connections to one cluster.

    `local` returns the handlers that answer clients without a cluster, given the advertised address.
    `upstream_networks`: the networks of the brokers; empty means any.
    """

    def __init__(
        self,
        *,
        cluster: str,
        host: str,
        port: int,
        advertised_host: str | None,
        receiver: TelemetryReceiver,
        flush: Callable[[], None],
        observe: Observe,
        now_ms: Callable[[], int],
        limits: Limits,
        connect_timeout_s: float,
        local: Callable[[str, int, Connection], Mapping[int, LocalAnswer]] | None = None,
        security: ListenerSecurity = _PLAINTEXT,
        new_listeners: Callable[..., Listeners] = Listeners,
        admission: AdmissionLimits = AdmissionLimits(),
        upstream_networks: tuple[Network, ...] = (),
    ) -> None:
        self.cluster = cluster
        self.advertised_host = advertised_host
        self.receiver = receiver
        self.observe = observe
        self.now_ms = now_ms
        self.limits = limits
        self.connect_timeout_s = connect_timeout_s
        self.local = local
        self.upstream_networks = upstream_networks
        self.counts = GatewayCounts()
        self.commit = GroupCommit(flush, receiver.settled)
        self.security = security
        self.listeners = new_listeners(host=host, port=port, listen=self._listen)
        self.clients: set[ClientConnection] = set()
        self.last_lost = asyncio.Event()
        self.admission: Admission[TimedConnection] = Admission(admission)
        self._timeouts: asyncio.Task[None] | None = None

    async def _listen(self, listener: socket.socket, node_id: int) -> ListeningServer:
        """Accepts the connections of a node's listener."""

        def serve() -> ClientConnection:
            return ClientConnection(self, node_id)

        if self.security.tls is None:
            return await asyncio.get_running_loop().create_server(serve, sock=listener)
        return TlsServer(listener, self.security.tls, self.admission, serve)

    async def start(self, nodes: Iterable[BrokerNode]) -> tuple[str, int]:
        """Opens all listeners; returns the bootstrap address. Raises OSError when its port is taken."""
        address = await self.listeners.open(nodes)
        self._timeouts = asyncio.create_task(enforce_timeouts(self.admission, lambda: self.clients))
        return address

    async def close(self, grace_s: float) -> None:
        """Stops accepting, waits at most `grace_s` for requests in flight, closes."""
        self.listeners.close()
        self.last_lost.clear()
        for client in tuple(self.clients):
            client.drain()
        if self.clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.last_lost.wait(), grace_s)
        for client in tuple(self.clients):
            client.abort()
        if self._timeouts is not None:
            self._timeouts.cancel()
