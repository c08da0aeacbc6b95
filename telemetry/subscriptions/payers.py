"""Budgets of telemetry by who pays: a principal, or the source network of clients without one, and each connection.

Sans-I/O. What a client states in a header or a payload, such as its instance id or client id, never chooses a budget.
A token bucket per resource is refilled with time. A request is refused when a bucket of its payer or of its connection
is empty; the last accepted one may overdraw it. Refused requests cost nothing, so that a payer who waits for the
throttle time is served again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from exporters.identity import payer_of
from exporters.model import ANONYMOUS, Connection
from exporters.spool.records import sender_bytes

MAX_PAYERS: Final = 65_536
_MIN_THROTTLE_MS: Final = 1_000  # a bucket of one request is not worth another try
_MAX_THROTTLE_MS: Final = 60_000
_MAX_NAME_CHARS: Final = 255
# Seconds of its rate that a bucket holds: all clients of a payer may come at once, after a restart.
_REQUESTS_S: Final = 10.0
_INSTANCES_S: Final = 100.0
_BYTES_S: Final = 20.0


class Resource(StrEnum):
    """What a request was refused for: label values of our metrics."""

    REQUESTS = "requests"
    INSTANCES = "instances"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class PayerLimits:
    """What one payer may send to one network process, per second. One connection may use `connection_share` of it.

    Derived from 10,000 client instances of one principal that push every 10 s: 1,000 requests a second. Payloads of
    real clients have 0.5 to 2.2 kB (librdkafka, Java), those of consumers of many partitions 20 kB. All 10,000 may ask
    for an id within a moment, when they or Headroom are restarted; so a bucket of instances holds twice as many.
    """

    requests: float = 2_000
    instances: float = 200  # ids that are not known here
    nbytes: float = 33_554_432  # of payloads as they arrive
    connection_share: float = 0.25


class PayerUse(NamedTuple):
    """A payer that was over its budgets. `refused`: its requests that were refused, by resource."""

    payer: str
    refused: Mapping[str, int]
    last_refused_ms: int  # by the clock of the rules


class _Rates:
    """What the buckets of a payer or of a connection gain in a millisecond, and hold at most."""

    __slots__ = ("bytes_per_ms", "instances_per_ms", "max_bytes", "max_instances", "max_requests", "requests_per_ms")

    def __init__(self, limits: PayerLimits, share: float) -> None:
        self.max_requests = limits.requests * share * _REQUESTS_S
        self.max_instances = limits.instances * share * _INSTANCES_S
        self.max_bytes = limits.nbytes * share * _BYTES_S
        self.requests_per_ms = limits.requests * share / 1000.0
        self.instances_per_ms = limits.instances * share / 1000.0
        self.bytes_per_ms = limits.nbytes * share / 1000.0


class Budget:
    """The buckets of a payer or of a connection."""

    __slots__ = ("_at_ms", "_instances", "_nbytes", "_rates", "_requests", "last_refused_ms", "refused")

    def __init__(self, rates: _Rates, now_ms: int) -> None:
        self._rates = rates
        self._at_ms = now_ms
        self._requests = rates.max_requests
        self._instances = rates.max_instances
        self._nbytes = rates.max_bytes
        self.refused: Counter[Resource] | None = None  # None: nothing was refused
        self.last_refused_ms = 0

    def refill(self, now_ms: int) -> None:
        """Adds what the time since the last call is worth."""
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms <= 0:
            return
        self._at_ms = now_ms
        rates = self._rates  # conditions instead of min(), which is a call in interpreted code, on the way of each push
        requests = self._requests + rates.requests_per_ms * elapsed_ms
        self._requests = requests if requests < rates.max_requests else rates.max_requests
        instances = self._instances + rates.instances_per_ms * elapsed_ms
        self._instances = instances if instances < rates.max_instances else rates.max_instances
        nbytes = self._nbytes + rates.bytes_per_ms * elapsed_ms
        self._nbytes = nbytes if nbytes < rates.max_bytes else rates.max_bytes

    def missing(self, is_new: bool) -> Resource | None:
        """The resource that a request needs and that is used up."""
        if self._requests <= 0.0:
            return Resource.REQUESTS
        if self._nbytes <= 0.0:
            return Resource.BYTES
        return Resource.INSTANCES if is_new and self._instances <= 0.0 else None

    def take(self, nbytes: int, is_new: bool) -> None:
        """Charges an accepted request."""
        self._requests -= 1.0
        self._nbytes -= nbytes
        if is_new:
            self._instances -= 1.0

    def refuse(self, resource: Resource, now_ms: int) -> int:
        """Counts a refused request; returns the time until the next one can be accepted, in ms."""
        if self.refused is None:
            self.refused = Counter()
        self.refused[resource] += 1
        self.last_refused_ms = now_ms
        rates = self._rates
        if resource is Resource.REQUESTS:
            left, per_ms = self._requests, rates.requests_per_ms
        elif resource is Resource.INSTANCES:
            left, per_ms = self._instances, rates.instances_per_ms
        else:
            left, per_ms = self._nbytes, rates.bytes_per_ms
        return min(max(int((1.0 - left) / per_ms) + 1, _MIN_THROTTLE_MS), _MAX_THROTTLE_MS)


class Account:
    """Whom the requests of one connection are charged to."""

    __slots__ = ("_connection", "_payer", "_refused")

    def __init__(self, payer: Budget, connection: Budget, refused: Counter[Resource]) -> None:
        self._payer = payer
        self._connection = connection
        self._refused = refused

    def charge(self, now_ms: int, nbytes: int, is_new: bool) -> int:
        """Charges a request of `nbytes` payload bytes, and a new instance with `is_new`.

        Returns 0, or the throttle time in ms of a request that is refused.
        """
        payer, connection = self._payer, self._connection
        payer.refill(now_ms)
        connection.refill(now_ms)
        over = payer
        resource = payer.missing(is_new)
        if resource is None:
            over = connection
            resource = connection.missing(is_new)
        if resource is None:
            payer.take(nbytes, is_new)
            connection.take(nbytes, is_new)
            return 0
        self._refused[resource] += 1
        if over is connection:  # the payer's own table names it as well
            payer.refuse(resource, now_ms)
        return over.refuse(resource, now_ms)


class Caller:
    """The identity behind one connection. `sender`: the same, encoded for spool records. `account`: whom the receiver
    charges for it, once it has."""

    __slots__ = ("account", "client_id", "connection", "connection_id", "sender")

    def __init__(self, connection: Connection, client_id: str | None, connection_id: str) -> None:
        self.connection = connection
        self.client_id = client_id
        self.connection_id = connection_id
        self.sender = sender_bytes(connection, client_id)
        self.account: Account | None = None


class Payers:
    """The budgets of all payers of a network process, and of their connections. Bounded."""

    def __init__(self, limits: PayerLimits | None = None) -> None:
        self.refused: Counter[Resource] = Counter(dict.fromkeys(Resource, 0))
        limits = limits or PayerLimits()
        self._rates = _Rates(limits, 1.0)
        self._connection_rates = _Rates(limits, limits.connection_share)
        self._by_payer: dict[str, Budget] = {}
        self._by_connection: dict[str, Budget] = {}

    def account(self, connection: Connection, connection_id: str, now_ms: int) -> Account:
        """The account of a connection."""
        payer = self._payer(payer_of(connection.principal, connection.source_address), now_ms)
        own = self._by_connection.get(connection_id)
        if own is None:
            own = self._by_connection[connection_id] = Budget(self._connection_rates, now_ms)
            _drop_oldest(self._by_connection)
        return Account(payer, own, self.refused)

    def charge_address(self, address: str, now_ms: int, nbytes: int) -> int:
        """Charges a request of `nbytes` whose sender nobody authenticated, of OTLP. As `Account.charge`."""
        payer = self._payer(payer_of(ANONYMOUS, address), now_ms)
        payer.refill(now_ms)
        resource = payer.missing(is_new=False)
        if resource is None:
            payer.take(nbytes, is_new=False)
            return 0
        self.refused[resource] += 1
        return payer.refuse(resource, now_ms)

    def disconnected(self, connection_id: str) -> None:
        """Forgets the budget of a closed connection; its payer's remains."""
        self._by_connection.pop(connection_id, None)

    def _payer(self, key: str, now_ms: int) -> Budget:
        payer = self._by_payer.get(key)
        if payer is None:
            payer = self._by_payer[key] = Budget(self._rates, now_ms)
            _drop_oldest(self._by_payer)
        return payer

    def worst(self, count: int) -> list[PayerUse]:
        """The payers that were refused most often, at most `count`."""
        over = (
            PayerUse(payer[:_MAX_NAME_CHARS], _plain(budget.refused), budget.last_refused_ms)
            for payer, budget in self._by_payer.items()
            if budget.refused is not None
        )
        return _worst_first(over)[:count]


def merged_uses(processes: Iterable[Iterable[PayerUse]]) -> list[PayerUse]:
    """The payers of several network processes, worst first."""
    merged: dict[str, PayerUse] = {}
    for use in (one for uses in processes for one in uses):
        before = merged.get(use.payer, PayerUse(use.payer, {}, 0))
        refused = Counter(before.refused) + Counter(use.refused)
        merged[use.payer] = PayerUse(use.payer, refused, max(before.last_refused_ms, use.last_refused_ms))
    return _worst_first(merged.values())


def _plain(refused: Counter[Resource]) -> dict[str, int]:
    return {str(resource): count for resource, count in refused.items()}


def _worst_first(uses: Iterable[PayerUse]) -> list[PayerUse]:
    return sorted(uses, key=lambda use: (-sum(use.refused.values()), use.payer))


def _drop_oldest(budgets: dict[str, Budget]) -> None:
    """Accounts of open connections keep what is dropped here."""
    if len(budgets) > MAX_PAYERS:
        del budgets[next(iter(budgets))]
