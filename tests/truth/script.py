"""The script of the truth: what each client wants and each limit allows at every second, and the flags that follow.

No I/O and no clock; seconds count from the start of the script. The flags come from the script alone: Kafka's window
rate of what a client wants, against the limit in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

PHASES = 3
WARM_UP_PHASES = 1  # before the first phase: Kafka's window fills
KAFKA_WINDOW_S = 10  # seconds that a broker's rate covers, without the running one
WARN, MARGIN = 0.80, 0.05
SETTLING_WINDOWS = 2  # not scored after a limit or broker changed: the gateway learns of it within seconds
TOLERANCE = 0.08  # windows whose flag changes when usage is off by this share are not scored
LIMIT = 120_000.0
NO_LIMIT = 9.2e18  # producer_byte_rate = Long.MAX_VALUE: a rule without a limit

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
JAVA, LIBRDKAFKA = "java", "librdkafka"

Wanted = Callable[[float, int], float]  # second of the script, seconds of a phase -> bytes/s


def steady(*shares: float) -> Wanted:
    """A share of LIMIT in each phase; one value: in all of them."""
    return lambda second, phase_s: LIMIT * shares[min(max(int(second // phase_s), 0), len(shares) - 1)]


def ramp(first: float, last: float) -> Wanted:
    """Grows linearly over the phases."""
    return lambda second, phase_s: LIMIT * (first + (last - first) * min(max(second / (PHASES * phase_s), 0.0), 1.0))


def bursts(height: float, length_s: int, every_s: int) -> Wanted:
    return lambda second, _phase_s: LIMIT * (height if second % every_s < length_s else 0.05)


class Client(NamedTuple):
    """A real client. `brokers` are those of its partitions, `shares` how its records are spread over them."""

    name: str
    wanted: Wanted
    family: str = LIBRDKAFKA
    gateways: tuple[int, ...] = (0,)
    brokers: tuple[int, ...] = (1,)
    shares: tuple[float, ...] = (1.0,)
    moves_to: int = 0  # broker that takes its partition when the second phase begins
    limits: tuple[float, ...] = (LIMIT,)  # by phase, as many as there are or one for all; empty: the shared bucket
    pushes: bool = True  # telemetry
    stops_pushing: bool = False  # reopened without telemetry when the second phase begins
    reads: str = ""  # a consumer of this client's topic
    reason: str = ""  # part of the reason of a flagged window

    @property
    def quota_key(self) -> str:
        return CONSUMER if self.reads else PRODUCER

    @property
    def is_shared(self) -> bool:
        return not self.limits

    def limit(self, phase: int) -> float:
        """The limit of its bucket."""
        limits = self.limits or (SHARED_LIMIT,)
        return limits[min(max(phase, 0), len(limits) - 1)]

    def broker(self, phase: int) -> int:
        """The broker where it takes most of its limit."""
        if self.moves_to and phase >= 1:
            return self.moves_to
        return self.brokers[self.shares.index(max(self.shares))]

    def changes(self, phase: int) -> bool:
        """Whether its limit or broker changes when the phase begins."""
        return phase >= 1 and (
            self.limit(phase) != self.limit(phase - 1) or self.broker(phase) != self.broker(phase - 1)
        )


SHARED_LIMIT = 3 * LIMIT
GREEDY = "team-greedy"
_WANTS_MORE = "wants more than"
_NEAR = "headroom on broker"

CLIENTS: tuple[Client, ...] = (
    Client("ramp", ramp(0.25, 1.5), JAVA, reason=""),
    Client("bursts", bursts(0.93, 14, 40), gateways=(1,), brokers=(2,), reason=_NEAR),
    Client(GREEDY, steady(1.0, 2.2, 3.4), brokers=(3,), limits=()),
    Client("team-small-a", steady(0.25), JAVA, gateways=(1,), brokers=(3,), limits=()),
    Client("team-small-b", steady(0.25), gateways=(1,), brokers=(3,), limits=()),
    Client("lowered", steady(0.3), JAVA, limits=(LIMIT, 0.34 * LIMIT, LIMIT), reason=_NEAR),
    Client("moved", steady(0.9), gateways=(1,), brokers=(2,), moves_to=3, reason=_NEAR),
    Client("two-gateways", steady(0.9), gateways=(0, 1), reason=_NEAR),
    Client("no-telemetry", steady(0.9), gateways=(1,), brokers=(3,), pushes=False, reason=_NEAR),
    Client("stops-pushing", steady(0.9), brokers=(2,), stops_pushing=True, reason=_NEAR),
    Client("spread", steady(1.5), JAVA, gateways=(1,), brokers=(1, 2, 3), shares=(0.2, 0.6, 0.2), reason=_NEAR),
    Client("greedy-alone", steady(1.4), brokers=(2,), reason=_WANTS_MORE),
    Client("silent", steady(0.0), gateways=(1,)),
    Client("quiet-little", steady(0.05), brokers=(2,)),
    Client("quiet-third", steady(0.3), JAVA, gateways=(1,)),
    Client("quiet-half", steady(0.5), brokers=(3,)),
    Client("unlimited", steady(1.2), gateways=(1,), limits=(NO_LIMIT,)),
    Client("reader-throttled", steady(1.2), limits=(0.6 * LIMIT,), reads="unlimited", reason=_WANTS_MORE),
    Client("reader-quiet", steady(1.2), gateways=(1,), limits=(4 * LIMIT,), reads="unlimited"),
)


class Expected(NamedTuple):
    """What the script says of a client in a window. `flagged` None: too close to the threshold to be scored."""

    flagged: bool | None
    broker: int
    reason: str
    culprit: str


def expected(window_s: int, phase_s: int) -> Mapping[tuple[str, int], Expected]:
    """By client and first second of the window."""
    found: dict[tuple[str, int], Expected] = {}
    starts = range(-WARM_UP_PHASES * phase_s, PHASES * phase_s, window_s)
    for client in CLIENTS:
        low, high = (_flags(client, starts, window_s, phase_s, factor) for factor in (1 - TOLERANCE, 1 + TOLERANCE))
        for start, least, most in zip(starts, low, high, strict=True):
            phase = start // phase_s
            since_s = start - phase * phase_s
            settled = not client.changes(phase) or since_s >= SETTLING_WINDOWS * window_s
            flag = least if least == most and settled else None
            reason = _WANTS_MORE if client.reason == "" and _share(client, start, phase_s) > 1.2 else client.reason
            found[client.name, start] = Expected(flag, client.broker(phase), reason, GREEDY if client.is_shared else "")
    return found


def _flags(client: Client, starts: range, window_s: int, phase_s: int, factor: float) -> list[bool]:
    """Per window whether the client is at `warn` or worse: entered at once, left after two windows below."""
    flags: list[bool] = []
    low_before = True
    for start in starts:
        seconds = [factor * _share(client, start + second + 0.5, phase_s) for second in range(window_s)]
        value = max(sum(seconds) / window_s, sorted(seconds)[min(window_s - 1, int(0.95 * window_s))])
        low = value < WARN - MARGIN
        held = bool(flags) and flags[-1] and not (low and low_before)
        flags.append(value >= WARN or held)
        low_before = low
    return flags


def _share(client: Client, second: float, phase_s: int) -> float:
    """Kafka's window rate at a second, of all that share the limit, as a share of it; uncapped."""
    sharing = [other for other in CLIENTS if other.is_shared] if client.is_shared else [client]
    moments = [second - ago for ago in range(KAFKA_WINDOW_S)]
    rate = sum(one.wanted(at, phase_s) * max(one.shares) for one in sharing for at in moments) / KAFKA_WINDOW_S
    return rate / client.limit(int(second // phase_s))
