"""The brokers' quotas on addresses: max.connections.per.ip and connection_creation_rate (KIP-612). Sans-I/O.

Port of kafka.network.ConnectionQuotas, as far as it is about addresses: a connection above the rate is not counted and
closed after a delay, one above the number is closed at once. Each broker counts for itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from quota_metrics.measure.muted_time import MutedTime
from quota_metrics.windows import QuotaWindow, Rate, bounded_throttle_time_ms

ADMITTED: Final = 0
TOO_MANY: Final = -1

NO_LIMIT: Final = 2**31 - 1  # Kafka's Integer.MAX_VALUE
_KEPT_MS: Final = 3_600_000  # how long a broker keeps an address's sensor
_MOST_ADDRESSES: Final = 100_000

Address: TypeAlias = tuple[str, int]  # an address and the broker


class AddressLimits(NamedTuple):
    """Limits of one broker: `of_address` replaces `most` for single addresses, `rate_of` likewise `rate`."""

    most: int = NO_LIMIT
    most_of: Mapping[str, int] = {}
    rate: float = NO_LIMIT
    rate_of: Mapping[str, float] = {}

    @property
    def is_limited(self) -> bool:
        """Whether any connection can be refused."""
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
    """Decides on each new connection. Times are wall clock ms. Bounded: addresses without connections, whose window is
    empty, are forgotten; above 100,000 addresses a new one is admitted without a count of its rate."""

    def __init__(
        self,
        limits_at: Callable[[int], AddressLimits],
        window_at: Callable[[int], QuotaWindow] = lambda _: QuotaWindow(),
    ) -> None:
        self._limits_at = limits_at
        self._window_at = window_at
        self._counts: dict[Address, int] = {}
        self._rates: dict[Address, _AddressRate] = {}
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
        """An admitted connection has ended."""
        place = (address, broker_id)
        left = self._counts.get(place, 0) - 1
        if left > 0:
            self._counts[place] = left
        else:
            self._counts.pop(place, None)

    def uses(self, now_ms: int) -> Iterator[AddressUse]:
        """The addresses with a limit on their rate that connected lately; resets what is about the time since the last
        reading."""
        since_ms, self._read_ms = self._read_ms or now_ms - 1000, now_ms
        for (address, broker_id), rate in list(self._rates.items()):
            limits = self._limits_at(broker_id)
            limit, measured = limits.rate_at(address), rate.window.measure(now_ms)
            if limit < NO_LIMIT and (measured > 0 or rate.throttled):
                muted_ms = int(rate.muted.muted_ms(since_ms, now_ms))
                yield AddressUse(
                    *(address, broker_id, measured, limit, address in limits.rate_of, rate.throttle_ms),
                    *(rate.throttled, muted_ms, max(now_ms - since_ms, 1)),
                )
            rate.begin_interval()
            if now_ms - rate.last_ms > _KEPT_MS or (measured == 0 and len(self._rates) > _MOST_ADDRESSES // 2):
                del self._rates[address, broker_id]

    def _delay_ms(self, place: Address, limit: float, now_ms: int) -> int:
        """ConnectionQuotas.recordIpConnectionMaybeThrottle: a connection that is throttled is un-recorded."""
        if limit >= NO_LIMIT:
            return 0
        window = self._window_at(place[1])
        rate = self._rates.get(place)
        if rate is None:
            if len(self._rates) >= _MOST_ADDRESSES:
                return 0
            rate = self._rates[place] = _AddressRate(window)
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
    configs: Mapping[str, str],
    rates: Mapping[str | None, float],
    names: Callable[[str], list[str]] = lambda name: [name],
) -> AddressLimits:
    """The limits of a broker: its configuration, and connection_creation_rate by address (None: the default). `names`
    returns the addresses of a host name in max.connections.per.ip.overrides."""
    overrides: dict[str, int] = {}
    for part in configs.get("max.connections.per.ip.overrides", "").split(","):
        name, _, count = part.strip().rpartition(":")
        if name and count.strip().isascii() and count.strip().isdigit():
            overrides |= dict.fromkeys(map(normal_address, names(name.strip())), int(count))
    most = configs.get("max.connections.per.ip", "")
    return AddressLimits(
        int(most) if most.isascii() and most.isdigit() else NO_LIMIT,
        overrides,
        rates.get(None, float(NO_LIMIT)),
        {normal_address(ip): float(int(rate)) for ip, rate in rates.items() if ip is not None},
    )


def normal_address(text: str) -> str:
    """An address as one spelling, IPv4-mapped IPv6 as IPv4, as Java's InetAddress does; a name unchanged."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return text
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return str(parsed)
