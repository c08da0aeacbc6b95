"""The script of the truth: what each client wants and each limit allows at every second, and the flags that follow.

No I/O and no clock; seconds count from the start of the script. The flags come from the script alone: Kafka's window
rate of what a client wants, against the limit in force.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headroom.demo.jars import KAFKA_VERSION
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS

PHASES = 3
WARM_UP_PHASES = 1  # before the first phase: Kafka's window fills
KAFKA_WINDOW_S = 10  # seconds that a broker's rate covers, without the running one
WARN, MARGIN = 0.80, 0.05
SETTLING_WINDOWS = 2  # not scored after a limit or broker changed: the gateway learns of it within seconds
TOLERANCE = 0.08  # windows whose flag changes when usage is off by this share are not scored
WANTS_MORE = 1.2  # share of its limit from which a client waits
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


class Pods(NamedTuple):
    """`stay` instances run all the time, `leave` ones until the second phase, when `come` ones of another version
    replace them. What each of them sends: a share of LIMIT."""

    stay: int
    leave: int
    come: int
    before: float
    after: float

    def wanted(self, second: float, phase_s: int) -> float:
        """Of all of them."""
        others = self.leave * self.before if second < phase_s else self.come * self.after
        return LIMIT * (self.stay * self.before + others)


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
    impact: str = ""  # of flagged windows; "": none where it has all that it wants, `delayed` where it does not
    calm_impact: str = "none"  # of the other windows
    cause: str = ""  # part of the cause that the windows after its onset tell; "": they tell none
    pods: Pods | None = None
    config: Mapping[str, str] = {}
    is_steered: bool = True  # the script knows its rate at each second, so that its flags are scored

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

    def share(self, phase: int) -> float:
        """The share of its records that is on that broker; its first partition moves."""
        if self.moves_to and phase >= 1:
            return sum(
                share
                for number, (broker, share) in enumerate(zip(self.brokers, self.shares, strict=True))
                if number == 0 or broker == self.moves_to
            )
        return max(self.shares)

    def changes(self, phase: int) -> bool:
        """Whether its limit or broker changes when the phase begins."""
        return phase >= 1 and (
            self.limit(phase) != self.limit(phase - 1) or self.broker(phase) != self.broker(phase - 1)
        )


SHARED_LIMIT = 3 * LIMIT
GREEDY = "team-greedy"
HEAVY, HEAVY_BROKER, HEAVY_LIMITS = "heavy", 3, 30.0  # its records of LARGE keep the broker's only I/O thread busy
RECORD_BYTES, LARGE_RECORD_BYTES = 3_000, 12_000_000
LARGE = {"message.max.bytes": "13000000"}
IMPATIENT = {"delivery.timeout.ms": "800", "request.timeout.ms": "700"}
OLD_JAVA, NEW_LIBRDKAFKA = "3.9.1", "99.1"
_NEW_JAVA = f"apache-kafka-java {KAFKA_VERSION}"
_ROLLED = Pods(stay=2, leave=2, come=2, before=0.1, after=0.45)
_REPLACED = Pods(stay=0, leave=2, come=2, before=0.15, after=0.5)
_NEIGHBOUR = f"neighbour {GREEDY} takes"
_WANTS_MORE = "wants more than"
_NEAR = "headroom on broker"

CLIENTS: tuple[Client, ...] = (
    Client("ramp", ramp(0.25, 1.5), JAVA, reason=""),
    Client("loses", steady(0.3, 2.0, 2.0), JAVA, brokers=(2,), reason=_WANTS_MORE, impact="losing", config=IMPATIENT),
    Client("rolled", _ROLLED.wanted, JAVA, gateways=(1,), pods=_ROLLED, cause=f"2 of 4 instances run {_NEW_JAVA}"),
    Client("replaced", _REPLACED.wanted, brokers=(3,), pods=_REPLACED, cause=f" {NEW_LIBRDKAFKA} since "),
    Client(
        "gathered", steady(0.9), JAVA, brokers=(2, 3), shares=(0.5, 0.5), moves_to=3, cause="load moved to broker 3"
    ),
    Client("bursts", bursts(0.93, 14, 40), gateways=(1,), brokers=(2,), reason=_NEAR),
    Client(GREEDY, steady(1.0, 2.2, 3.4), brokers=(3,), limits=()),
    Client("team-small-a", steady(0.25), JAVA, gateways=(1,), brokers=(3,), limits=(), cause=_NEIGHBOUR),
    Client("team-small-b", steady(0.25), gateways=(1,), brokers=(3,), limits=(), cause=_NEIGHBOUR),
    Client("lowered", steady(0.3), JAVA, limits=(LIMIT, 0.34 * LIMIT, LIMIT), reason=_NEAR, cause="limit lowered from"),
    Client("moved", steady(0.9), gateways=(1,), brokers=(2,), moves_to=3, reason=_NEAR),
    Client("two-gateways", steady(0.9), gateways=(0, 1), reason=_NEAR),
    Client("no-telemetry", steady(0.9), gateways=(1,), brokers=(3,), pushes=False, reason=_NEAR, impact="unknown"),
    Client("stops-pushing", steady(0.9), brokers=(2,), stops_pushing=True, reason=_NEAR),
    Client("spread", steady(1.5), JAVA, gateways=(1,), brokers=(1, 2, 3), shares=(0.2, 0.6, 0.2), reason=_NEAR),
    Client("greedy-alone", steady(1.4), brokers=(2,), reason=_WANTS_MORE),
    Client("silent", steady(0.0), gateways=(1,)),
    Client("quiet-little", steady(0.05), brokers=(2,)),
    Client("quiet-third", steady(0.3), JAVA, gateways=(1,)),
    Client("quiet-half", steady(0.5), brokers=(3,)),
    Client("unlimited", steady(1.2), gateways=(1,), limits=(NO_LIMIT,)),
    Client("gusts", bursts(2.5, 6, 40), limits=(NO_LIMIT,)),
    # librdkafka's consumer reports neither lag nor throttle times.
    Client(
        *("reader-throttled", steady(1.2)),
        limits=(0.6 * LIMIT,),
        reads="unlimited",
        reason=_WANTS_MORE,
        impact="unknown",
    ),
    Client(
        *("reader-quiet", steady(1.2)), gateways=(1,), limits=(4 * LIMIT,), reads="unlimited", calm_impact="unknown"
    ),
    Client(
        *("reader-behind", steady(1.2), JAVA),
        limits=(0.5 * LIMIT,),
        reads="unlimited",
        reason=_WANTS_MORE,
        impact="falling-behind",
    ),
    # Throttled in each gust, and never many records behind. When it has caught up follows from its limit.
    Client(
        *("reader-of-gusts", bursts(2.5, 6, 40), JAVA),
        gateways=(1,),
        reads="gusts",
        impact="none",
        is_steered=False,
    ),
    Client("near-heavy", steady(0.2), JAVA, gateways=(1,), brokers=(3,)),
    Client(HEAVY, steady(0.05, 0.05, HEAVY_LIMITS), brokers=(HEAVY_BROKER,), limits=(NO_LIMIT,), config=LARGE),
)
VICTIMS = ("quiet-half", "near-heavy")  # of HEAVY in the last phase


class Expected(NamedTuple):
    """What the script says of a client in a window. `flagged`, `impact`, `cause` None: too close to be scored."""

    flagged: bool | None
    broker: int
    reason: str
    culprit: str
    impact: str | None
    cause: str | None


def expected(window_s: int, phase_s: int) -> Mapping[tuple[str, int], Expected]:
    """By client and first second of the window."""
    found: dict[tuple[str, int], Expected] = {}
    starts = range(-WARM_UP_PHASES * phase_s, PHASES * phase_s, window_s)
    for client in CLIENTS:
        low, high = (_flags(client, starts, window_s, phase_s, factor) for factor in (1 - TOLERANCE, 1 + TOLERANCE))
        causes = _causes(client, starts, low, high, window_s)
        for number, (start, least, most) in enumerate(zip(starts, low, high, strict=True)):
            phase = start // phase_s
            since_s = start - phase * phase_s
            settled = not client.changes(phase) or since_s >= SETTLING_WINDOWS * window_s
            flag = least if least == most and settled and client.is_steered else None
            share = _share(client, start, phase_s)
            reason = _WANTS_MORE if client.reason == "" and share > WANTS_MORE else client.reason
            lately = slice(max(number - SETTLING_WINDOWS, 0), number + 1)
            is_steady = len({*low[lately], *high[lately]}) == 1
            impact = _impact(client, flag, share, phase) if is_steady else None
            if not client.is_steered and min(low[number], high[number]):
                impact = client.impact
            culprit = GREEDY if client.is_shared else ""
            found[client.name, start] = Expected(flag, client.broker(phase), reason, culprit, impact, causes[number])
    return found


def _impact(client: Client, flag: bool | None, share: float, phase: int) -> str | None:
    """What a client feels that is in its state for some windows."""
    if client.stops_pushing and phase >= 1:
        return "unknown" if phase > 1 else None
    if phase == PHASES - 1 and client.broker(phase) == HEAVY_BROKER:
        return None
    if flag is None or (flag and client.is_shared):  # who of those that share a limit waits longer is up to the broker
        return None
    if not flag:
        return client.calm_impact if client.pushes else "unknown"
    if client.impact:
        return client.impact
    if share > WANTS_MORE:
        return "delayed"
    return "none" if share < 1 - MARGIN else None


def _causes(client: Client, starts: range, low: list[bool], high: list[bool], window_s: int) -> list[str | None]:
    """What the windows tell after the last onset, which is not known exactly; nothing is told in calm windows."""
    found: list[str | None] = []
    onset: int | None = None
    for number, start in enumerate(starts):
        if number and (low[number] or high[number]) and not (low[number - 1] or high[number - 1]):
            onset = number
        if not (low[number] and high[number]) or start < CAUSE_WINDOWS * window_s or not client.is_steered:
            found.append(None)  # in the first windows it has just begun
        elif onset is None or number - onset > CAUSE_WINDOWS + 1:
            found.append("")
        elif client.moves_to and not client.cause:
            found.append(None)  # whether it was below between the brokers
        else:
            found.append(client.cause if SETTLING_WINDOWS <= number - onset < CAUSE_WINDOWS else None)
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
    rate = (
        sum(one.wanted(at, phase_s) * one.share(int(at // phase_s)) for one in sharing for at in moments)
        / KAFKA_WINDOW_S
    )
    return rate / client.limit(int(second // phase_s))
