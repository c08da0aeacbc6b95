"""The brokers' quotas on addresses: max.connections.per.ip and connection_creation_rate (KIP-612). Sans-I/O.

Port of kafka.network.ConnectionQuotas, as far as it is about addresses: a connection above the rate is not counted and
closed after a delay, one above the number is closed at once. Each broker counts for itself.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from exporters.identity import address_key, normal_address
from quota_metrics.config.entities import literal_address
from quota_metrics.measure.throttle_times import MutedTime
from quota_metrics.windows import QuotaWindow, Rate, bounded_throttle_time_ms

ADMITTED: Final = 0
TOO_MANY: Final = -1

NO_LIMIT: Final = 2**31 - 1  # Kafka's Integer.MAX_VALUE
_KEPT_MS: Final = 3_600_000  # how long a broker keeps an address's sensor
_MOST_WINDOWS: Final = 20_000  # each is measured once a second
_MOST_OF_NETWORK: Final = 256  # a host may have 2^64 addresses of IPv6
_SIZE: Final = "::/64"
_MOST_ROWS: Final = 1_000  # per reading

Address: TypeAlias = tuple[str, int]  # an address and the broker


class AddressLimits(NamedTuple):
    """Limits of one broker: `most_of` replaces `most` for single addresses, `rate_of` likewise `rate`."""

    most: int = NO_LIMIT
    most_of: Mapping[str, int] = {}
    rate: float = NO_LIMIT
    rate_of: Mapping[str, float] = {}

    @property
    def is_limited(self) -> bool:
        return self.most < NO_LIMIT or self.rate < NO_LIMIT or bool(self.most_of) or bool(self.rate_of)

    def most_at(self, address: str) -> int:
        return self.most_of.get(address, self.most)

    def rate_at(self, address: str) -> float:
        return self.rate_of.get(address, self.rate)


class AddressUse(NamedTuple):
    """What one address did at one broker, for a row of usage."""

    address: str
    broker_id: int
    rate: float  # connections per second, as the broker measures
    limit: float
    is_override: bool  # the limit is the address's own
    throttle_ms: int  # the longest delay since the last reading
    throttled: int
    muted_ms: int  # how much of the interval a delay was in force
    interval_ms: int  # since the last reading


class ConnectionQuotas:
    """Decides on each new connection. Times are ms of a clock that nobody sets back: windows would not move meanwhile.

    Bounded: addresses without connections, whose window is empty, are forgotten. At one broker at most 256 addresses
    of an IPv6 /64 network have a window of their own, the others share one, which admits no more than Kafka would.
    Above 20,000 windows a new address is admitted without a count of its rate.
    """

    def __init__(
        self,
        limits_at: Callable[[int], AddressLimits],
        window_at: Callable[[int], QuotaWindow] = lambda _: QuotaWindow(),
    ) -> None:
        self.left_out = 0  # addresses that `uses` did not return
        self._limits_at = limits_at
        self._window_at = window_at
        self._counts: dict[Address, int] = {}
        self._rates: dict[Address, _AddressRate] = {}
        self._of_network: Counter[Address] = Counter()  # windows by network and broker
        self._read_ms: int | None = None

    def connect(self, address: str, broker_id: int, now_ms: int) -> int:
        """ADMITTED, TOO_MANY, or the delay in ms after which to close the connection. An admitted one counts until
        `disconnect`."""
        limits = self._limits_at(broker_id)
        place = (address, broker_id)
        delay_ms = self._delay_ms(place, limits.rate_at(address), now_ms)
        if delay_ms > 0:
            return delay_ms
        count = self._counts.get(place, 0)
        if count >= limits.most_at(address):
            return TOO_MANY
        self._counts[place] = count + 1
        return ADMITTED

    def disconnect(self, address: str, broker_id: int) -> None:
        place = (address, broker_id)
        left = self._counts.get(place, 0) - 1
        if left > 0:
            self._counts[place] = left
        else:
            self._counts.pop(place, None)

    def uses(self, now_ms: int) -> list[AddressUse]:
        """The addresses with a limit on their rate that connected lately, those that are delayed and then those
        nearest to their limit, at most 1,000; resets what is about the time since the last reading."""
        since_ms, self._read_ms = self._read_ms or now_ms - 1000, now_ms
        uses = []
        for (address, broker_id), rate in list(self._rates.items()):
            limits = self._limits_at(broker_id)
            limit, measured = limits.rate_at(address), rate.window.measure(now_ms)
            if limit < NO_LIMIT and (measured > 0 or rate.throttled):
                is_override = address in limits.rate_of
                muted_ms = int(rate.muted.muted_ms(since_ms, now_ms))
                delays = (rate.throttle_ms, rate.throttled, muted_ms, max(now_ms - since_ms, 1))
                uses.append(AddressUse(address, broker_id, measured, limit, is_override, *delays))
            rate.begin_interval()
            if now_ms - rate.last_ms > _KEPT_MS or (measured == 0 and len(self._rates) > _MOST_WINDOWS // 2):
                del self._rates[address, broker_id]
                network = _network_of((address, broker_id))
                self._of_network[network] -= 1
                if not self._of_network[network]:
                    del self._of_network[network]
        self.left_out += max(len(uses) - _MOST_ROWS, 0)
        return heapq.nlargest(
            _MOST_ROWS, uses, key=lambda use: (use.throttled > 0, use.rate / use.limit if use.limit > 0 else use.rate)
        )

    def _delay_ms(self, place: Address, limit: float, now_ms: int) -> int:
        """ConnectionQuotas.recordIpConnectionMaybeThrottle: a connection that is throttled is un-recorded."""
        if limit >= NO_LIMIT:
            return 0
        window = self._window_at(place[1])
        rate = self._rate(place, window)
        if rate is None:
            return 0
        rate.last_ms = now_ms
        rate.window.record(1.0, now_ms)
        measured = rate.window.measure(now_ms)
        if measured <= limit:
            return 0
        elapsed_ms = rate.window.elapsed_ms(now_ms)
        delay_ms = bounded_throttle_time_ms(measured, limit, elapsed_ms, window.window_ms)
        if delay_ms <= 0:
            return 0
        rate.window.record(-1.0, now_ms)
        rate.throttle(delay_ms, now_ms)
        return delay_ms

    def _rate(self, place: Address, window: QuotaWindow) -> _AddressRate | None:
        """The address's rate, or that which its network shares; None without room."""
        rate = self._rates.get(place)
        if rate is not None:
            return rate
        network = _network_of(place)
        if self._of_network[network] >= _MOST_OF_NETWORK and place[0] not in self._limits_at(place[1]).rate_of:
            place = network
            rate = self._rates.get(place)
        if rate is None and len(self._rates) < _MOST_WINDOWS:
            rate = self._rates[place] = _AddressRate(window)
            self._of_network[network] += 1
        return rate


def _network_of(place: Address) -> Address:
    """The place of an address's network: of IPv6 the /64, of IPv4 the address itself."""
    address, broker_id = place
    if ":" not in address or address.endswith(_SIZE):
        return place
    return address_key(address) + _SIZE, broker_id


class _AddressRate:
    """The rate of one address at one broker, and its delays since the last reading."""

    __slots__ = ("last_ms", "muted", "throttle_ms", "throttled", "window")

    def __init__(self, window: QuotaWindow) -> None:
        self.window: Rate = window.rate()
        self.muted = MutedTime()
        self.last_ms = 0
        self.begin_interval()

    def begin_interval(self) -> None:
        self.throttle_ms = self.throttled = 0

    def throttle(self, delay_ms: int, now_ms: int) -> None:
        self.throttled += 1
        self.throttle_ms = max(self.throttle_ms, delay_ms)
        self.muted.announce(now_ms, delay_ms)


def address_limits(
    configs: Mapping[str, str], rates: Mapping[str | None, float], addresses_of: Mapping[str, Sequence[str]] = {}
) -> AddressLimits:
    """The limits of a broker: its configuration, and connection_creation_rate by address (None: the default).
    `addresses_of`: of host names, in max.connections.per.ip.overrides or of quotas; others apply to nobody."""

    def addresses(name: str) -> Iterator[str]:
        literal = literal_address(name)
        yield from map(normal_address, addresses_of.get(name, ())) if literal is None else (literal,)

    most = configs.get("max.connections.per.ip", "")
    return AddressLimits(
        int(most) if most.isascii() and most.isdigit() else NO_LIMIT,
        {address: count for name, count in _overrides(configs) for address in addresses(name)},
        float(int(rates.get(None, NO_LIMIT))),
        {address: float(int(rate)) for ip, rate in rates.items() if ip is not None for address in addresses(ip)},
    )


def overridden_hosts(configs: Mapping[str, str]) -> set[str]:
    """The host names in max.connections.per.ip.overrides, whose addresses `address_limits` needs."""
    return host_names(name for name, _count in _overrides(configs))


def host_names(names: Iterable[str | None]) -> set[str]:
    """Those that a broker looks up."""
    return {name for name in names if name is not None and literal_address(name) is None}


def _overrides(configs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for part in configs.get("max.connections.per.ip.overrides", "").split(","):
        name, _, count = part.strip().rpartition(":")
        if name and count.strip().isascii() and count.strip().isdigit():
            yield name.strip(), int(count)
