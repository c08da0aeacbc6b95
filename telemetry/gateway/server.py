"""All client connections to one cluster: opened, counted, drained, closed: also those that are late or idle."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from exporters.model import Connection
from quota_metrics.kafka.cluster import Node
from telemetry.gateway.client_connection import ClientConnection, GatewayOptions, SharedContext, TimedConnection
from telemetry.gateway.connection_limits import Admission, Reason
from telemetry.gateway.listener import Listener, ListenerOptions
from telemetry.gateway.responses import LocalAnswer, Observe
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.telemetry_requests import TelemetryReceiver

log = structlog.get_logger(__name__)

_SWEEP_S = 1.0
_QUIET_SWEEPS = 8  # of the idle timeout, at least
_REFUSALS_LOGGED = 20  # per minute: any client can cause them, at the rate at which it connects


class Gateway(SharedContext):
    """All client connections to one cluster, by the main listener and further ones to the same brokers.

    `local` returns the handlers that answer clients without a cluster, given the advertised address.
    """

    def __init__(
        self,
        cluster: str,
        receiver: TelemetryReceiver,
        listeners: Sequence[ListenerOptions],
        *,
        flush: Callable[[], None],
        observe: Observe,
        now_ms: Callable[[], int],
        local: Callable[[str, int, Connection], Mapping[int, LocalAnswer]] | None = None,
        options: GatewayOptions,
    ) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.observe = observe
        self.now_ms = now_ms
        self.options = options
        self.local = local
        self.connections_total = self.protocol_errors = self.upstream_failures = 0
        self.commit = GroupCommit(flush, receiver.settled, options.most_waiting)
        self.clients: set[ClientConnection] = set()
        self.last_lost = asyncio.Event()
        self.admission: Admission[TimedConnection] = Admission(options.admission)
        self._timeouts: asyncio.Task[None] | None = None
        self._refusals = (0, 0)  # the current minute, and how many in it
        self._listeners = [Listener(self, listener) for listener in listeners]
        self.all_ports = [listener.ports for listener in self._listeners]  # of each listener, the main one first
        self.ports = self.all_ports[0]

    def refused(self, reason: str, peer: object) -> None:
        """Counts and logs a connection that is closed because of what its client sent."""
        self.protocol_errors += 1
        now = self.now_ms() // 60_000
        minute, count = self._refusals
        self._refusals = (now, 1 if now != minute else count + 1)
        if self._refusals[1] <= _REFUSALS_LOGGED:
            log.info("connection closed", reason=reason, peer=peer)
        elif self._refusals[1] == _REFUSALS_LOGGED + 1:
            log.warning("further connections closed in this minute are counted only: headroom_protocol_errors_total")

    async def start(self, nodes: Iterable[Node]) -> tuple[str, int]:
        """Opens all listeners; returns the bootstrap address. Raises OSError when its port is taken."""
        brokers = list(nodes)
        address = await self.ports.open(brokers)
        for further in self._listeners[1:]:
            await further.open(brokers)
        self._timeouts = asyncio.create_task(self._enforce_timeouts())
        return address

    async def close(self, grace_s: float) -> None:
        """Stops accepting, waits at most `grace_s` for requests in flight, closes."""
        for ports in self.all_ports:
            ports.close()
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

    async def _enforce_timeouts(self) -> None:
        """Runs until it is cancelled."""
        loop, limits = asyncio.get_running_loop(), self.admission.limits
        idle_sweep_s = min(limits.idle_timeout_s / _QUIET_SWEEPS, limits.keep_alive_s)
        next_idle_s = loop.time() + idle_sweep_s
        while True:
            await asyncio.sleep(min(_SWEEP_S, idle_sweep_s))
            for client, reason in self.admission.overdue(loop.time()):
                client.close_for(reason)
            if loop.time() >= next_idle_s:
                next_idle_s = loop.time() + idle_sweep_s
                close_idle(self.clients, limits.idle_timeout_s / idle_sweep_s)


def close_idle(clients: Iterable[ClientConnection], most_quiet: float) -> None:
    """One sweep: closes connections without traffic in the last `most_quiet` sweeps; in three times as many if they
    wait for a response of the broker; in one if the client has left, else a broker that hangs gathers connections."""
    for client in tuple(clients):
        client.quiet_sweeps = 0 if client.active else client.quiet_sweeps + 1
        client.active = False
        most = most_quiet * 3 if client.waits_for_broker else most_quiet
        if client.quiet_sweeps > most or (client.quiet_sweeps and client.has_left()):
            client.close_for(Reason.IDLE)
        else:
            client.keep_upstream_alive()
