"""The flag of a client and window, and the reason in words. Functions of columns."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from exporters.model import QuotaKey

LEVELS = ("ok", "watch", "warn", "critical", "throttled")  # best first, as the Enum8 in ClickHouse

# What throttles a client whose byte rate does not: on the wire, the longer of two throttle times is all there is.
_ANOTHER = "short bursts, or another quota such as request_percentage"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which utilisation on a level holds. Raises ValueError unless 0 < watch <= warn <= critical."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.watch <= self.warn <= self.critical:
            given = f"watch {self.watch}, warn {self.warn}, critical {self.critical}"
            raise ValueError(f"thresholds must be above 0 and must not fall: {given}")


def level(throttle_ms: Column, utilization: Column, thresholds: Thresholds) -> Column:
    """One of LEVELS. Any throttle time above 0 is `throttled`; a null utilisation (no quota) is `ok`."""
    return (
        F.when(throttle_ms > 0, "throttled")
        .when(utilization >= thresholds.critical, "critical")
        .when(utilization >= thresholds.warn, "warn")
        .when(utilization >= thresholds.watch, "watch")
        .otherwise("ok")
    )


def reason(thresholds: Thresholds) -> Column:
    """Why, in words, of a row with quota_key, broker_id, limit, matched_entity, group_usage, usage_max, utilization,
    throttle_ms_max, client_throttle_ms_max and shared_with."""
    unlimited = F.when(F.col("utilization").isNull(), "no quota applies")
    verdict = F.when(F.col("throttle_ms_max") > 0, _throttled(thresholds)).otherwise(unlimited.otherwise(_near()))
    return F.concat_ws("; ", verdict, _felt(), _shared())


def _throttled(thresholds: Thresholds) -> Column:
    wants_more = (F.col("utilization") >= thresholds.watch) | (F.col("usage_max") > F.col("limit"))
    why = (
        F.when(F.col("limit").isNull(), F.format_string(f"no %s quota applies: {_ANOTHER}", "quota_key"))
        .when(F.col("utilization").isNull(), F.format_string("by %s", _rule()))
        .when(wants_more, F.format_string("wants more than %s", _rule()))
        .otherwise(F.format_string(f"at %s of %s: {_ANOTHER}", _percent(), _rule()))
    )
    return F.format_string("throttled %s at most on broker %d: %s", _duration(), "broker_id", why)


def _near() -> Column:
    headroom = F.greatest(F.col("limit") - F.col("group_usage"), F.lit(0.0))
    return F.format_string("at %s of %s, %s headroom on broker %d", _percent(), _rule(), _amount(headroom), "broker_id")


def _felt() -> Column:
    """What the client itself says, null where it says nothing or felt nothing."""
    felt = F.col("client_throttle_ms_max")
    kind = (
        F.when(F.col("quota_key") == QuotaKey.PRODUCER_BYTE_RATE, "produce throttle")
        .when(F.col("quota_key") == QuotaKey.CONSUMER_BYTE_RATE, "fetch throttle")
        .otherwise("throttle")
    )
    return F.when(felt > 0, F.format_string("client felt %s %.0f ms", kind, felt))


def _shared() -> Column:
    others = F.col("shared_with")
    several = F.when(others > 1, F.format_string("%d other clients share this quota", others))
    return F.when(others == 1, "another client shares this quota").otherwise(several)


def _rule() -> Column:
    return F.format_string("%s %s of %s", "quota_key", _amount(F.col("limit")), "matched_entity")


def _percent() -> Column:
    return F.format_string("%.1f %%", F.col("utilization") * 100)


def _duration() -> Column:
    longest = F.col("throttle_ms_max")
    seconds = F.format_string("%.1f s", longest / 1000)
    return F.when(longest >= 1000, seconds).otherwise(F.format_string("%.0f ms", longest))


def _amount(value: Column) -> Column:
    """A rate with the unit of its quota key."""
    in_bytes = (
        F.when(value >= 1e6, F.format_string("%.1f MB/s", value / 1e6))
        .when(value >= 1e3, F.format_string("%.1f kB/s", value / 1e3))
        .otherwise(F.format_string("%.0f B/s", value))
    )
    return (
        F.when(F.col("quota_key") == QuotaKey.REQUEST_PERCENTAGE, F.format_string("%.1f %%", value))
        .when(F.col("quota_key") == QuotaKey.CONTROLLER_MUTATION_RATE, F.format_string("%.1f mutations/s", value))
        .otherwise(in_bytes)
    )
