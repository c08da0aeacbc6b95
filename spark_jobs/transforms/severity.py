"""The level of a client in a window, and the reason as text. Functions of columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from exporters.model import QuotaKey
from spark_jobs.transforms.thresholds import Thresholds

LEVELS = ("unknown", "ok", "watch", "warn", "critical", "throttled")  # best first, as the Enum8 in ClickHouse
UTILIZATION_LEVELS = ("ok", "watch", "warn", "critical")  # indexed by the number of thresholds that hold

MUTED_SHARE = 0.01  # muted share of the window from which a client is `throttled`; below it is `critical`

_MOST = 0.5  # share of a shared quota from which a client is named
# What else may throttle a client: a response carries only the longest of its throttle times.
_ANOTHER = "short bursts, or another quota such as request_percentage"


def level(holding: Column) -> Column:
    """One of LEVELS, from a row with state, muted_ms, muted_share; `holding` is how many thresholds hold."""
    by_utilization = F.array(*(F.lit(name) for name in UTILIZATION_LEVELS))[holding]
    return (
        F.when(F.col("muted_share") >= MUTED_SHARE, "throttled")
        .when(F.col("muted_ms") > 0, "critical")
        .when(F.col("state") == "unknown", "unknown")
        .when(F.col("value").isNull(), "ok")
        .otherwise(by_utilization)
    )


def reached(value: Column, thresholds: Thresholds) -> Column:
    """How many thresholds a utilisation reaches, without hysteresis."""
    steps = (thresholds.watch, thresholds.warn, thresholds.critical)
    return F.coalesce(sum(((value >= step).cast("int") for step in steps), F.lit(0)), F.lit(0))


def reason(thresholds: Thresholds) -> Column:
    """The reason as text, from a row of quota_utilization with state."""
    unlimited = F.when(F.col("state") == "unknown", "no quota was observed yet").when(
        F.col("value").isNull(), "no quota applies"
    )
    verdict = F.when(F.col("throttle_ms_max") > 0, _throttled(thresholds)).when(
        F.col("muted_ms") > 0, F.format_string("still muted by an earlier throttle time on broker %d", "broker_id")
    )
    more = (_muted(), _bursts(), _held(), _felt(), _shared(), _instance())
    return F.concat_ws("; ", verdict.otherwise(unlimited.otherwise(_near())), *more)


def _muted() -> Column:
    """How long the client was muted."""
    return F.when(F.col("muted_ms") > 0, F.format_string("muted %.1f s of the window", F.col("muted_ms") / 1000))


def _bursts() -> Column:
    bursts = F.col("utilization_p95") >= F.col("utilization") + 0.1
    return F.when(bursts, F.format_string("bursts to %.1f %%", F.col("utilization_p95") * 100))


def _held() -> Column:
    level = F.col("level")
    falls = (level != F.col("instant_level")) & level.isin(*UTILIZATION_LEVELS[1:])
    return F.when(falls, F.format_string("%s until it stays lower for two windows", level))


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
    """Throttling that the client itself reports; null if it reports none."""
    felt = F.col("client_throttle_ms_max")
    kind = (
        F.when(F.col("quota_key") == QuotaKey.PRODUCER_BYTE_RATE, "produce throttle")
        .when(F.col("quota_key") == QuotaKey.CONSUMER_BYTE_RATE, "fetch throttle")
        .otherwise("throttle")
    )
    return F.when(felt > 0, F.format_string("client felt %s %.0f ms", kind, felt))


def _shared() -> Column:
    others = F.col("shared_with")
    share = F.col("culprit_share")
    itself = (F.col("culprit_user") == F.col("user")) & (F.col("culprit_client_id") == F.col("client_id"))
    who = F.when(itself, "this client").otherwise(F.col("culprit_client_id"))
    most = F.when(share >= _MOST, F.format_string(", %s takes %.0f %% of it", who, share * 100)).otherwise("")
    several = F.when(others > 1, F.format_string("%d other clients share this quota", others))
    return F.concat(F.when(others == 1, "another client shares this quota").otherwise(several), most)


def _instance() -> Column:
    """The instance with most of the usage, if one dominates."""
    share = F.col("busiest_instance_share")
    text = "instance %s reports %.0f %% of the bytes of this client id"
    return F.when(share >= _MOST, F.format_string(text, "busiest_instance", share * 100))


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
