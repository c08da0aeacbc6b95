"""Budgets of telemetry by who pays: a principal, or the source network of clients without one, and each connection.

Sans-I/O. What a client states in a header or a payload, such as its instance id or client id, never chooses a budget.
A token bucket per resource is refilled with time. A request is refused when a bucket of its payer or of its connection
is empty; the last accepted one may overdraw it. Refused requests cost nothing, so that a payer who waits for the
throttle time is served again.

A bucket is stored as the time at which it would be full (the generic cell rate algorithm, ITU-T I.371). Taking from it
moves that time on. It is empty when that time is as far away as an empty bucket takes to fill. This costs each push one
comparison and one addition.
"""

import itertools
import math
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
# Time in which an empty bucket is full: all clients of a payer may come at once, after a restart.
_REQUESTS_MS: Final = 10_000.0
_INSTANCES_MS: Final = 100_000.0
_BYTES_MS: Final = 20_000.0


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
    nbytes: float = 33_554_432  # of payloads: of Kafka's and gRPC's as they arrive, of OTLP's after decompression
    connection_share: float = 0.25


class PayerUse(NamedTuple):
    """A payer that was over its budgets. `refused`: its requests that were refused, by resource."""

    payer: str
    refused: Mapping[str, int]
    last_refused_ms: int  # by the clock of the rules


class _Costs:
    """Time in ms in which a payer or a connection earns a unit of each resource."""

    __slots__ = ("byte_ms", "instance_ms", "request_ms")

    def __init__(self, limits: PayerLimits, share: float) -> None:
        self.request_ms = 1000.0 / (limits.requests * share)
        self.instance_ms = 1000.0 / (limits.instances * share)
        self.byte_ms = 1000.0 / (limits.nbytes * share)


class Budget:
    """The buckets of a payer or of a connection: when each would be full."""

    __slots__ = ("bytes_at_ms", "costs", "instances_at_ms", "last_refused_ms", "refused", "requests_at_ms")

    def __init__(self, costs: _Costs) -> None:
        self.costs = costs
        self.requests_at_ms = 0.0
        self.instances_at_ms = 0.0
        self.bytes_at_ms = 0.0
        self.refused: Counter[Resource] | None = None  # None: nothing was refused
        self.last_refused_ms = 0

    def missing(self, now_ms: int, is_new: bool) -> Resource | None:
        """The resource that a request needs and that is used up."""
        if self.requests_at_ms - now_ms >= _REQUESTS_MS:
            return Resource.REQUESTS
        if self.bytes_at_ms - now_ms >= _BYTES_MS:
            return Resource.BYTES
        return Resource.INSTANCES if is_new and self.instances_at_ms - now_ms >= _INSTANCES_MS else None

    def take(self, now_ms: int, nbytes: int, is_new: bool) -> None:
        costs = self.costs  # conditions instead of max(), which is a call in interpreted code
        at_ms = self.requests_at_ms
        self.requests_at_ms = (at_ms if at_ms > now_ms else now_ms) + costs.request_ms
        at_ms = self.bytes_at_ms
        self.bytes_at_ms = (at_ms if at_ms > now_ms else now_ms) + nbytes * costs.byte_ms
        if is_new:
            at_ms = self.instances_at_ms
            self.instances_at_ms = (at_ms if at_ms > now_ms else now_ms) + costs.instance_ms

    def refuse(self, resource: Resource, now_ms: int) -> int:
        """Counts a refused request; returns the time until the next one can be accepted, in ms."""
        if self.refused is None:
            self.refused = Counter()
        self.refused[resource] += 1
        self.last_refused_ms = now_ms
        costs = self.costs
        if resource is Resource.REQUESTS:
            left_ms, unit_ms = self.requests_at_ms - _REQUESTS_MS, costs.request_ms
        elif resource is Resource.INSTANCES:
            left_ms, unit_ms = self.instances_at_ms - _INSTANCES_MS, costs.instance_ms
        else:
            left_ms, unit_ms = self.bytes_at_ms - _BYTES_MS, costs.byte_ms
        return min(max(math.ceil(left_ms - now_ms + unit_ms), _MIN_THROTTLE_MS), _MAX_THROTTLE_MS)


class Account:
    """The budgets that pay for the requests of one connection."""

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
        if not (
            is_new
            or payer.requests_at_ms > now_ms
            or connection.requests_at_ms > now_ms
            or payer.bytes_at_ms > now_ms
            or connection.bytes_at_ms > now_ms
        ):
            # All four buckets are full, as for nearly every push: `take` of both without a call.
            payer.requests_at_ms = now_ms + payer.costs.request_ms
            payer.bytes_at_ms = now_ms + nbytes * payer.costs.byte_ms
            connection.requests_at_ms = now_ms + connection.costs.request_ms
            connection.bytes_at_ms = now_ms + nbytes * connection.costs.byte_ms
            return 0
        over = payer
        resource = over.missing(now_ms, is_new)
        if resource is None:
            over = connection
            resource = over.missing(now_ms, is_new)
            if resource is None:
                payer.take(now_ms, nbytes, is_new)
                connection.take(now_ms, nbytes, is_new)
                return 0
        self._refused[resource] += 1
        if over is connection:  # the payer's own table names it as well
            payer.refuse(resource, now_ms)
        return over.refuse(resource, now_ms)


class Caller:
    """The identity behind one connection.

    `sender`: the same, encoded for spool records. `account`: whom the receiver charges, after the first request.
    """

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
        self._costs = _Costs(limits, 1.0)
        self._connection_costs = _Costs(limits, limits.connection_share)
        self._by_payer: dict[str, Budget] = {}
        self._by_connection: dict[str, Budget] = {}

    def account(self, connection: Connection, connection_id: str) -> Account:
        payer = self._payer(payer_of(connection.principal, connection.source_address))
        own = self._by_connection.get(connection_id)
        if own is None:
            own = self._by_connection[connection_id] = Budget(self._connection_costs)
            _drop_oldest(self._by_connection)
        return Account(payer, own, self.refused)

    def charge_address(self, address: str, now_ms: int, nbytes: int) -> int:
        """Charges a request of `nbytes` whose sender nobody authenticated, of OTLP. As `Account.charge`."""
        payer = self._payer(payer_of(ANONYMOUS, address))
        resource = payer.missing(now_ms, is_new=False)
        if resource is None:
            payer.take(now_ms, nbytes, is_new=False)
            return 0
        self.refused[resource] += 1
        return payer.refuse(resource, now_ms)

    def disconnected(self, connection_id: str) -> None:
        """Forgets the budget of a closed connection; its payer's remains."""
        self._by_connection.pop(connection_id, None)

    def _payer(self, key: str) -> Budget:
        payer = self._by_payer.get(key)
        if payer is None:
            payer = self._by_payer[key] = Budget(self._costs)
            _drop_oldest(self._by_payer)
        return payer

    def worst(self, count: int) -> list[PayerUse]:
        """The payers that were refused most often, at most `count`."""
        over = (
            PayerUse(
                payer[:_MAX_NAME_CHARS],
                {str(resource): refusals for resource, refusals in budget.refused.items()},
                budget.last_refused_ms,
            )
            for payer, budget in self._by_payer.items()
            if budget.refused is not None
        )
        return _worst_first(over)[:count]


def merged_uses(processes: Iterable[Iterable[PayerUse]]) -> list[PayerUse]:
    """The payers of several network processes, worst first."""
    merged: dict[str, PayerUse] = {}
    for use in itertools.chain.from_iterable(processes):
        before = merged.get(use.payer, PayerUse(use.payer, {}, 0))
        refused = Counter(before.refused) + Counter(use.refused)
        merged[use.payer] = PayerUse(use.payer, refused, max(before.last_refused_ms, use.last_refused_ms))
    return _worst_first(merged.values())


def _worst_first(uses: Iterable[PayerUse]) -> list[PayerUse]:
    return sorted(uses, key=lambda use: (-sum(use.refused.values()), use.payer))


def _drop_oldest(budgets: dict[str, Budget]) -> None:
    """Drops a budget above the limit. Accounts of open connections keep theirs."""
    if len(budgets) > MAX_PAYERS:
        del budgets[next(iter(budgets))]
