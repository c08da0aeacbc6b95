"""Limits on client connections: their number, bytes of unfinished requests, time per request; the brokers' quotas on
addresses (max.connections.per.ip, connection_creation_rate). Sans-I/O.

The owner of the sockets reports events and closes the connections that the methods return. Times are monotonic seconds.
One process decides on quotas on addresses for all (quota_metrics.measure.connection_quotas): that answer is awaited.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from exporters.identity import address_key
from quota_metrics.measure.connection_quotas import ADMITTED

C = TypeVar("C", bound=Hashable)


class Reason(StrEnum):
    """Why a connection was refused or closed: label values of our metrics."""

    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_FROM_ADDRESS = "too_many_from_address"
    ADDRESS_RATE = "address_rate"  # above the cluster's connection_creation_rate of the address
    ADDRESS_CONNECTIONS = "address_connections"  # above the broker's max.connections.per.ip
    PROXY_HEADER = "proxy_header"  # none, or an invalid one, from a trusted proxy
    HELD_BYTES = "held_bytes"
    FRAME_TIMEOUT = "frame_timeout"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    TLS_HANDSHAKE = "tls_handshake"  # failed: no TLS, no common version, a certificate that is not trusted
    IDLE = "idle"


REFUSALS = (
    Reason.TOO_MANY_CONNECTIONS,
    Reason.TOO_MANY_FROM_ADDRESS,
    Reason.ADDRESS_RATE,
    Reason.ADDRESS_CONNECTIONS,
    Reason.PROXY_HEADER,
)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of all connections of one process together."""

    max_connections: int = 20_000
    max_connections_per_address: int = 15_000  # of IPv6 per /64, which one host may have
    max_held_bytes: int = 64 << 20  # of unfinished requests that are buffered here
    frame_timeout_s: float = 30.0  # from the first byte of such a request to its last
    handshake_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0  # Kafka's connections.max.idle.ms
    keep_alive_s: float = 75.0  # a quiet upstream gets a request within twice this: less than brokers and NAT wait
    last_writes_s: float = 60.0  # for what a client wrote before it left; its own kernel tries for about as long


class _Unfinished(NamedTuple):
    number: int  # of the request on its connection
    held_bytes: int
    begun_s: float


class Admission(Generic[C]):
    """Tracks connections of type C.

    Over the budget of held bytes, the connection with the oldest unfinished request is closed: a client that sends
    complete requests finishes within milliseconds.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.refused: Counter[Reason] = Counter(dict.fromkeys(REFUSALS, 0))
        self.closed: Counter[Reason] = Counter({reason: 0 for reason in Reason if reason not in REFUSALS})
        self._connections = 0
        self._by_address: Counter[str] = Counter()
        self._unfinished: dict[C, _Unfinished] = {}  # oldest first
        self._handshakes: dict[C, float] = {}  # oldest first; when it began

    def admit(self, address: str) -> Reason | None:
        """Admits and counts a new connection, or returns the reason for its refusal."""
        source = address_key(address)
        reason = None
        if self._connections >= self.limits.max_connections:
            reason = Reason.TOO_MANY_CONNECTIONS
        elif self._by_address[source] >= self.limits.max_connections_per_address:
            reason = Reason.TOO_MANY_FROM_ADDRESS
        if reason is not None:
            self.refused[reason] += 1
            return reason
        self._connections += 1
        self._by_address[source] += 1
        return None

    def left(self, client: C, address: str) -> None:
        source = address_key(address)
        self._connections -= 1
        self._by_address[source] -= 1
        if not self._by_address[source]:
            del self._by_address[source]
        self.finished(client)
        self._handshakes.pop(client, None)

    def unfinished(self, client: C, number: int, held_bytes: int, now_s: float) -> list[C]:
        """Request `number` has arrived in part; `held_bytes` of it are held. Returns the connections to close."""
        before = self._unfinished.get(client)
        if before is not None and before.number == number:
            begun_s = before.begun_s
        else:
            begun_s = now_s
            self._unfinished.pop(client, None)  # the next request is inserted last
        self.held_bytes += held_bytes - (before.held_bytes if before else 0)
        self._unfinished[client] = _Unfinished(number, held_bytes, begun_s)
        victims, excess = [], self.held_bytes - self.limits.max_held_bytes
        for other, unfinished in self._unfinished.items():
            if excess <= 0:
                break
            victims.append(other)
            excess -= unfinished.held_bytes
        return victims

    def finished(self, client: C) -> None:
        unfinished = self._unfinished.pop(client, None)
        if unfinished is not None:
            self.held_bytes -= unfinished.held_bytes

    def handshake_began(self, client: C, now_s: float) -> None:
        """A TLS or SASL handshake begins, which must end in time."""
        self._handshakes[client] = now_s

    def handshake_done(self, client: C) -> None:
        self._handshakes.pop(client, None)

    def overdue(self, now_s: float) -> list[tuple[C, Reason]]:
        """Connections that exceeded the time for a request or a handshake."""
        frames, handshakes = now_s - self.limits.frame_timeout_s, now_s - self.limits.handshake_timeout_s
        overdue: list[tuple[C, Reason]] = []
        for client, unfinished in self._unfinished.items():
            if unfinished.begun_s > frames:
                break
            overdue.append((client, Reason.FRAME_TIMEOUT))
        for client, begun_s in self._handshakes.items():
            if begun_s > handshakes:
                break
            overdue.append((client, Reason.HANDSHAKE_TIMEOUT))
        return overdue


@dataclass(slots=True)
class AddressGate:
    """`ask` and `left` are ConnectionQuotas' connect and disconnect. They are not called while nothing is limited."""

    ask: Callable[[str, int], Awaitable[int]] | None = None
    left: Callable[[str, int], None] = lambda _address, _broker_id: None
    is_limited: bool = False


@dataclass(slots=True)
class GatePass:
    """One connection's place at one broker."""

    gate: AddressGate
    place: tuple[str, int] | None = None

    async def enter(self, address: str, broker_id: int) -> tuple[Reason, int] | None:
        """Asks for a place, after the one that the connection has is given back.

        Returns why the connection is to be closed, and after how many milliseconds.
        """
        self.leave()
        if self.gate.ask is None or not self.gate.is_limited:
            return None
        delay_ms = await self.gate.ask(address, broker_id)
        if delay_ms == ADMITTED:
            self.place = (address, broker_id)
            return None
        return (Reason.ADDRESS_RATE, delay_ms) if delay_ms > 0 else (Reason.ADDRESS_CONNECTIONS, 0)

    def leave(self) -> None:
        """The connection has ended, or tries another broker."""
        if self.place is not None:
            self.gate.left(*self.place)
            self.place = None
