"""All client connections to one cluster: opened, counted, drained, closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

import structlog

from exporters.model import Connection
from telemetry.gateway.admission import Admission, AdmissionLimits, GatewayCounts
from telemetry.gateway.client_connection import ClientConnection, SharedContext
from telemetry.gateway.exchanges import Limits, LocalAnswer, Observe
from telemetry.gateway.listener import Listener
from telemetry.gateway.listeners import BrokerNode, Listeners
from telemetry.gateway.networks import Network
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.token_owners import TokenOwners
from telemetry.gateway.timeouts import TimedConnection, enforce_timeouts
from telemetry.receiver.group_commit import MOST_WAITING, GroupCommit
from telemetry.receiver.receiver import TelemetryReceiver

log = structlog.get_logger(__name__)

_PLAINTEXT = ListenerSecurity()
_REFUSALS_LOGGED = 20  # per minute: any client can cause them, at the rate at which it connects


class Gateway(SharedContext):
    """All client connections to one cluster.

    `local` returns the handlers that answer clients without a cluster, given the advertised address.
    `upstream_networks`: the networks of the brokers; empty means any. `most_waiting`: see GroupCommit.
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
        most_waiting: int | None = MOST_WAITING,
    ) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.observe = observe
        self.now_ms = now_ms
        self.limits = limits
        self.connect_timeout_s = connect_timeout_s
        self.local = local
        self.upstream_networks = upstream_networks
        self.counts = GatewayCounts()
        self.commit = GroupCommit(flush, receiver.settled, most_waiting)
        self.clients: set[ClientConnection] = set()
        self.last_lost = asyncio.Event()
        self.admission: Admission[TimedConnection] = Admission(admission)
        self.token_owners = TokenOwners()
        self._timeouts: asyncio.Task[None] | None = None
        self._refusals = (0, 0)  # the current minute, and how many in it
        self._every: list[Listener] = []
        self.add_listener(
            host=host, port=port, advertised_host=advertised_host, security=security, new_listeners=new_listeners
        )

    def add_listener(
        self,
        *,
        host: str,
        port: int,
        advertised_host: str | None,
        security: ListenerSecurity,
        new_listeners: Callable[..., Listeners] = Listeners,
    ) -> None:
        """A further listener to the same brokers. Before `start`."""
        self._every.append(
            Listener(
                self,
                host=host,
                port=port,
                advertised_host=advertised_host,
                security=security,
                new_listeners=new_listeners,
            )
        )

    def refused(self, reason: str, peer: object) -> None:
        """Counts and logs a connection that is closed because of what its client sent."""
        self.counts.protocol_errors += 1
        now = self.now_ms() // 60_000
        minute, count = self._refusals
        self._refusals = (now, 1 if now != minute else count + 1)
        if self._refusals[1] <= _REFUSALS_LOGGED:
            log.info("connection closed", reason=reason, peer=peer)
        elif self._refusals[1] == _REFUSALS_LOGGED + 1:
            log.warning("further connections closed in this minute are counted only: headroom_protocol_errors_total")

    @property
    def listeners(self) -> Listeners:
        """Those of the main listener."""
        return self._every[0].listeners

    @property
    def every_listener(self) -> list[Listeners]:
        """Those of the main listener first."""
        return [one.listeners for one in self._every]

    async def start(self, nodes: Iterable[BrokerNode]) -> tuple[str, int]:
        """Opens all listeners; returns the bootstrap address. Raises OSError when its port is taken."""
        known = list(nodes)
        address = await self.listeners.open(known)
        for further in self._every[1:]:
            await further.open(known)
        self._timeouts = asyncio.create_task(enforce_timeouts(self.admission, lambda: self.clients))
        return address

    async def close(self, grace_s: float) -> None:
        """Stops accepting, waits at most `grace_s` for requests in flight, closes."""
        for listeners in self.every_listener:
            listeners.close()
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
