"""Demands and rules in force -> suggested quotas and findings, each with its reason in words and numbers. Sans-I/O."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from exporters.model import QuotaKey
from quota_metrics.amounts import exact_share_text, rate_text
from quota_metrics.config.broker_refusals import DOUBLE, KEYS_OF_CLIENTS
from quota_metrics.config.entities import Entity, Rules, entity_of_names, entity_text
from quota_metrics.suggestion.dimension import OF_ONE_RUN, Dimension, is_nameable, keeps, level
from quota_metrics.verdict.thresholds import LARGEST_RATE, Thresholds
from quota_metrics.windows import LARGEST_BATCH, QuotaWindow

FULL: Final = Thresholds().critical  # utilisation (99th percentile) above which a quota is too low
TARGET: Final = Thresholds().warn  # share of a suggested limit that the demand takes
_SPREAD: Final = 4  # (third quartile / median) to this power above the third quartile: outliers
_LEAST_FENCE: Final = 2.0  # in third quartiles: where all want about the same
_DIGITS: Final = 2
# The window holds the largest batch: a broker takes a Produce of any size and mutes for as long as it is of the limit,
# but empties a Fetch response above the limit, and the next Fetch begins with the same batch.
_LEAST_RATE: Final = 10_000.0 * math.ceil(LARGEST_BATCH / QuotaWindow().full_s / 10_000)
_WHY_BATCH: Final = {
    QuotaKey.PRODUCER_BYTE_RATE.value: "so that it mutes nobody for minutes",
    QuotaKey.CONSUMER_BYTE_RATE.value: "so that it stops no consumer",
}
FEWEST: Final = 4  # clients of a default; fewer show no spread
MEDIUM_DAYS: Final = 2
HIGH_DAYS: Final = 7
FAR_TOO_HIGH: Final = 10.0  # times what would fit
_NAMES: Final = {
    Dimension.USER: "users",
    Dimension.CLIENT_ID: "client ids",
    Dimension.BOTH: "pairs of user and client id",
}


class Confidence(StrEnum):
    """By days (UTC) with usage: fewer than MEDIUM_DAYS, fewer than HIGH_DAYS, more."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def confidence(days: int, *, is_certain: bool = True) -> Confidence:
    """`is_certain`: the demand is known, and of a default there are clients enough; else the confidence is low."""
    if days < MEDIUM_DAYS or not is_certain:
        return Confidence.LOW
    return Confidence.MEDIUM if days < HIGH_DAYS else Confidence.HIGH


class Kind(StrEnum):
    """What a row says. The first three change a quota; the others are findings, which change nothing."""

    DEFAULT = "default"
    OWN = "own"
    RAISE = "raise"
    TOO_HIGH = "too-high"
    NEVER_USED = "never-used"
    FITS = "fits"


CHANGES: Final = (Kind.DEFAULT, Kind.OWN, Kind.RAISE)


class Usage(NamedTuple):
    """What a bucket used, in units of the key, each at its busiest broker; the 99th percentile is `Demand.low`."""

    mean: float = 0.0
    p95: float = 0.0
    peak: float = 0.0
    growth_per_week: float | None = None  # relative; None with less than two weeks


class Demand(NamedTuple):
    """What the clients of one bucket want, in units of the key, at `broker_id`, where they want most: the 99th
    percentile of five minutes, as recorded (`low`, under throttling a lower bound) and without throttling (`high`;
    None: not known at every broker). `need` is the most that is known of both."""

    user: str
    client_id: str
    broker_id: int
    need: float
    low: float
    high: float | None
    source: str
    peak: float  # of the busiest five minutes
    days: int
    throttled_share: float  # of the five minutes with usage
    limit: float | None = None  # of the rule in force
    throttled_limit: float | None = None  # when it was last throttled
    matched_entity: str = ""
    first_day: int = 0  # with usage, at any broker
    last_day: int = 0
    usage: Usage = Usage()

    @property
    def is_certain(self) -> bool:
        return self.high is not None


class KeyUsage(NamedTuple):
    """One quota key of a cluster. `free`: clients that a default would limit, by the dimension's buckets; `kept`:
    buckets of the rules in force; `clients_of`: how many clients each rule has; `settled`: rules that were in force all
    the time."""

    quota_key: str
    dimension: Dimension
    why: str
    rules: Rules
    free: Sequence[Demand]
    kept: Sequence[Demand]
    clients_of: Counter[Entity]
    settled: frozenset[Entity]


class ThrottledClient(NamedTuple):
    """For how long a client was throttled, and would have been under the suggestion: each at the broker with most."""

    user: str
    client_id: str
    before_s: float
    after_s: float


class Replayed(NamedTuple):
    """How many clients of a quota would have been throttled, for which share of the time at most, and the longest share
    for which one was. `longest`: those that were or would have been, the longest time first. Of `of_days` with usage
    `days` were replayed, each with at least `busiest` clients (None: all)."""

    clients: int = 0
    share: float = 0.0
    share_before: float = 0.0
    longest: Sequence[ThrottledClient] = ()
    days: int = 0
    of_days: int = 0
    busiest: int | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`limit`: in force; `suggested_limit` None: there is none. `clients`: buckets that the quota limits. The replay's
    figures are None where nothing was replayed."""

    kind: Kind
    quota_key: str
    entity: Entity
    limit: float | None
    suggested_limit: float | None
    clients: int
    confidence: Confidence
    days: int
    reason: str
    demand: Demand | None = None
    throttled_share: float | None = None
    throttled_clients: int | None = None
    longest_throttled: Sequence[ThrottledClient] = ()

    @property
    def changes(self) -> bool:
        """Whether it is part of the file."""
        return self.kind in CHANGES and self.suggested_limit is not None

    def replayed(self, replay: Replayed) -> Suggestion:
        """With what the replay says of its clients."""
        covered = f" on {replay.days} of {replay.of_days} days" if replay.days < replay.of_days else ""
        if replay.busiest is not None:
            covered += f" for the busiest {replay.busiest} clients"
        text = "its recorded bytes would never have been throttled"
        if replay.clients:
            share = exact_share_text(replay.share)
            text = f"{replay.clients} of its clients would have been throttled, up to {share} of the time"
        was = f", recorded is up to {exact_share_text(replay.share_before)}" if replay.share_before else ""
        return replace(
            self,
            throttled_share=replay.share,
            throttled_clients=replay.clients,
            longest_throttled=replay.longest,
            reason=f"{self.reason}; replayed{covered}, {text}{was}",
        )


def suggestions(usage: KeyUsage) -> list[Suggestion]:
    """The default first, then changes by demand, then findings."""
    default = _default(usage)
    own = [] if default is None else list(_own(usage, default))
    raised = list(_raised(usage))
    changes = sorted(
        [*own, *raised], key=lambda change: (-change.demand.need if change.demand else 0.0, entity_text(change.entity))
    )
    kept = list(_kept_rules(usage, raised))
    too_high, fitting_rules = ([rule for rule in kept if rule.kind is kind] for kind in (Kind.TOO_HIGH, Kind.FITS))
    return [*([default] if default else []), *changes, *too_high, *_never_used(usage), *fitting_rules]


def _default(usage: KeyUsage) -> Suggestion | None:
    free = [bucket for bucket in usage.free if bucket.need > 0]
    if not free:
        return None
    majority = bulk([bucket.need for bucket in free])
    within = [bucket for bucket in free if bucket.need <= majority.fence]
    limit = _fitting_batch(majority.highest, usage.quota_key)
    current = _limit(usage, usage.dimension.default)
    throttles = any(bucket.throttled_share for bucket in within)
    needed = max(majority.highest / FULL, _fitting_batch(0.0, usage.quota_key) if throttles else 0.0)
    if current is not None and needed <= current < FAR_TOO_HIGH * limit:
        limit = current
    elif current is not None and throttles:
        limit = max(current, limit)  # it is not lowered where it throttles
    days = statistics.median_low(bucket.days for bucket in within)
    is_certain = len(free) >= FEWEST and all(bucket.is_certain for bucket in within)
    return Suggestion(
        Kind.DEFAULT,
        usage.quota_key,
        usage.dimension.default,
        current,
        limit,
        len(within),
        confidence(days, is_certain=is_certain),
        days,
        "; ".join(_why_default(usage, majority, within, limit, current)),
        max(within, key=lambda bucket: bucket.need),
    )


def _why_default(
    usage: KeyUsage, majority: Bulk, within: Sequence[Demand], limit: float, current: float | None
) -> Iterator[str]:
    key, names = usage.quota_key, _NAMES[usage.dimension]
    highest = max(majority.fence, TARGET * limit)  # of demands that get no limit of their own
    everyone = sum(bucket.need > 0 for bucket in usage.free)
    yield (
        f"{majority.size} of {everyone} {names} want at most {rate_text(majority.highest, key)} at a broker (99th"
        f" percentile of five minutes), {exact_share_text(majority.highest / limit)} of the limit"
    )
    if majority.size < everyone:
        yield f"the others want more than {rate_text(majority.fence, key)}"
    yield from _why_batch(limit, current, key)
    if once := sum(bucket.need > highest for bucket in _seen_once(usage)):
        yield f"{once} of these {names} were seen on one day only, not on the last, and get no limit of their own"
    above = [bucket.peak for bucket in within if bucket.peak > limit]
    if above:
        yield f"{len(above)} of them want more than the limit at their peak, up to {rate_text(max(above), key)}"
    unknown = sum(not bucket.is_certain for bucket in usage.free if 0 < bucket.need <= highest)
    if unknown:
        yield f"the demand of {unknown} is not known, and the limit may be below it: they were muted nearly always"
    if current is not None:
        what = "stays" if current == limit else f"is {rate_text(current, key)}"
        yield f"the default in force {what}"
    lesser = sorted((r for r in usage.clients_of if level(r) > level(usage.dimension.default)), key=entity_text)
    if lesser:
        count = sum(usage.clients_of[rule] for rule in lesser)
        such = f"({count} clients), such as {entity_text(lesser[0])}"
        yield f"it takes precedence over {len(lesser)} of the rules in force {such}"
    yield f"by {usage.dimension}: {usage.why}"


def _seen_once(usage: KeyUsage) -> set[Demand]:
    """Clients of one day only, which is not the last one with usage: such a name is often made for each run."""
    newest = max((bucket.last_day for bucket in (*usage.free, *usage.kept)), default=0)
    return {bucket for bucket in usage.free if bucket.first_day == bucket.last_day < newest}


def _own(usage: KeyUsage, default: Suggestion) -> Iterator[Suggestion]:
    """Clients that the default would throttle, that are beyond the fleet's fence, and that may come back."""
    assert default.suggested_limit is not None
    fence = bulk([bucket.need for bucket in usage.free if bucket.need > 0]).fence
    once = _seen_once(usage)
    for bucket in usage.free:
        if bucket not in once and bucket.need > max(fence, TARGET * default.suggested_limit):
            limit = _fitting_batch(bucket.need, usage.quota_key)
            if bucket.throttled_share and default.limit is not None:
                limit = max(limit, default.limit)
            ratio = f"{bucket.need / default.suggested_limit:.1f} times the default of "
            ratio += rate_text(default.suggested_limit, usage.quota_key)
            yield _of_bucket(usage, bucket, Kind.OWN, default.limit, limit, [ratio])


def _raised(usage: KeyUsage) -> Iterator[Suggestion]:
    """Buckets that come to their limit, of rules that stay. Of a default, a quota of its own."""
    for bucket, rule in _buckets(usage):
        # What throttled it may have been an earlier limit.
        if bucket.limit is None or (bucket.throttled_limit != bucket.limit and bucket.need <= FULL * bucket.limit):
            continue
        fits = _fitting_batch(bucket.need, usage.quota_key)
        said = [f"the limit in force is {rate_text(bucket.limit, usage.quota_key)}"]
        if bucket.need <= TARGET * bucket.limit:
            said.append("which its five minutes do not come to: it is throttled in shorter bursts")
        kind = Kind.RAISE if entity_of_names(bucket.user, bucket.client_id) == rule else Kind.OWN
        yield _of_bucket(usage, bucket, kind, bucket.limit, max(fits, bucket.limit), said)


def _of_bucket(
    usage: KeyUsage, bucket: Demand, kind: Kind, current: float | None, limit: float, said: Sequence[str]
) -> Suggestion:
    key, entity = usage.quota_key, entity_of_names(bucket.user, bucket.client_id)
    reasons = [f"wants {rate_text(bucket.need, key)} at broker {bucket.broker_id}", *said]
    reasons += _why_batch(limit, current, key)
    if bucket.throttled_share:
        reasons.append(
            f"it was throttled in {exact_share_text(bucket.throttled_share)} of the five minutes,"
            f" demand is {bucket.source}"
        )
    if not bucket.is_certain:
        reasons.append("its demand is not known, and the limit may be below it")
    if bucket.peak > limit:
        reasons.append(f"at its peak it wants {rate_text(bucket.peak, key)}, more than the limit")
    if OF_ONE_RUN.search(bucket.client_id):
        reasons.append("its client id looks made for one run, and the next run may not have this quota")
    nameable = all(name is not None and is_nameable(name) for _, name in entity)
    if not nameable:
        reasons.append("no quota can have this name")
    sure = confidence(bucket.days, is_certain=bucket.is_certain)
    suggested = limit if nameable else None
    return Suggestion(kind, key, entity, current, suggested, 1, sure, bucket.days, "; ".join(reasons), bucket)


def _kept_rules(usage: KeyUsage, raised: Sequence[Suggestion]) -> Iterator[Suggestion]:
    """Rules that stay: those of which no bucket takes a tenth of what it may, and those that fit all buckets that get
    no other quota."""
    of_rule: dict[Entity, list[Demand]] = defaultdict(list)
    for bucket, rule in _buckets(usage):
        of_rule[rule].append(bucket)
    changed = {suggestion.demand for suggestion in raised}
    for rule, all_buckets in of_rule.items():
        limit, buckets = _limit(usage, rule), [bucket for bucket in all_buckets if bucket not in changed]
        if limit is None or not buckets:
            continue
        most = max(buckets, key=lambda bucket: bucket.peak)
        days = statistics.median_low(bucket.days for bucket in buckets)
        would_fit = _fitting_batch(max(most.peak, most.need, 1.0), usage.quota_key)
        reason = (
            f"at the peak {rate_text(most.peak, usage.quota_key)} of {rate_text(limit, usage.quota_key)} are used,"
            f" {exact_share_text(most.peak / limit)}"
        )
        kind, suggested = Kind.FITS, limit
        if limit >= FAR_TOO_HIGH * would_fit and len(buckets) == len(all_buckets):
            kind, suggested = Kind.TOO_HIGH, would_fit
            reason += f": {rate_text(would_fit, usage.quota_key)} would fit"
        yield Suggestion(
            kind, usage.quota_key, rule, limit, suggested, len(buckets), confidence(days), days, reason, most
        )


def _never_used(usage: KeyUsage) -> Iterator[Suggestion]:
    """Rules that were in force all the time and that no client with usage has."""
    days = max((bucket.days for bucket in (*usage.free, *usage.kept)), default=0)
    for rule in sorted(usage.settled, key=entity_text):
        limit = usage.rules.get(rule, {}).get(usage.quota_key)
        if limit is not None and not usage.clients_of[rule] and days:
            reason = (
                f"no client with usage had this quota of {rate_text(limit, usage.quota_key)} in {days} days with usage"
            )
            yield Suggestion(Kind.NEVER_USED, usage.quota_key, rule, limit, None, 0, confidence(days), days, reason)


def _buckets(usage: KeyUsage) -> Iterator[tuple[Demand, Entity]]:
    """The buckets of rules that take precedence over the new default, with the limit that is in force now."""
    rules: Mapping[str, Entity] = {
        entity_text(rule): rule for rule, values in usage.rules.items() if usage.quota_key in values
    }
    for bucket in usage.kept:
        rule = rules.get(bucket.matched_entity)
        if rule is not None and keeps(rule, usage.dimension):
            yield bucket._replace(limit=_limit(usage, rule)), rule


def _limit(usage: KeyUsage, rule: Entity) -> float | None:
    """The rule's limit; None for NaN and huge values, which limit nobody."""
    value = usage.rules.get(rule, {}).get(usage.quota_key)
    return value if value is not None and value <= LARGEST_RATE else None


class Bulk(NamedTuple):
    """What most of a fleet want: `size` demands up to `highest`, the greatest one that is not above `fence`."""

    fence: float
    highest: float
    size: int


def bulk(demands: Sequence[float]) -> Bulk:
    """Of at least one demand, all above 0.

    The fence is that of skewed data: as far above the third quartile, in ratios, as four times the third quartile is
    above the median, and at least twice the third quartile. So at most about a quarter is beyond it, of a log-normal
    fleet one in 2,500 clients, and many idle clients do not move it.
    """
    ordered = sorted(demands)
    median, third = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.75))
    fence = third * max((third / median) ** _SPREAD, _LEAST_FENCE)
    within = [demand for demand in ordered if demand <= fence]
    return Bulk(fence, within[-1], len(within))


def _fitting_batch(demand: float, quota_key: str) -> float:
    """`fitting`, but of bytes at least what the largest batch needs. The demand may be 0."""
    return max(fitting(demand, quota_key) if demand > 0 else 0.0, _LEAST_RATE if quota_key in _WHY_BATCH else 0.0)


def _why_batch(limit: float, current: float | None, quota_key: str) -> Iterator[str]:
    if quota_key in _WHY_BATCH and limit == _LEAST_RATE > (current or 0.0):
        yield f"one batch of 1 MiB fits into the window of the limit, {_WHY_BATCH[quota_key]}"


def fitting(demand: float, quota_key: str) -> float:
    """The limit of which the demand is TARGET, rounded up to two digits; a whole number where Kafka wants one."""
    limit = demand / TARGET
    unit = 10.0 ** (math.floor(math.log10(limit)) - _DIGITS + 1)
    if KEYS_OF_CLIENTS.get(quota_key) != DOUBLE:
        unit = max(unit, 1.0)
    rounded = math.ceil(limit / unit - 1e-9) * unit
    return round(rounded, 9)
