"""Usage, limits, throttling and telemetry of each client and window, on its worst broker: rows of quota_utilization.

Quotas are per broker, and so is utilisation: the rate of all clients in the bucket at one broker / the limit. Levels
have hysteresis: entered at once, left when the value stays below the threshold for two consecutive windows. Its memory
is bounded (MEMORY_WINDOWS), so a level does not depend on where the range of a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from exporters.model import UNKNOWN, UNOWNED
from quota_metrics.levels import cause, definition, impact
from quota_metrics.levels.definition import MARGIN, MEMORY_WINDOWS, Thresholds
from quota_metrics.windows import QuotaWindow
from spark_jobs.clickhouse.queries import BYTE_KEYS, INSTANCE_LOOKBACK_S, UTILIZATION_SCHEMA
from spark_jobs.time_range import TimeRange

_CLIENT = ("cluster", "user", "client_id")
# Sorts compare the first eight bytes of the first column without reading the row: a hash decides nearly all of them.
_HASH = "client_hash"
_HASHED_CLIENT = (_HASH, *_CLIENT)
_SERIES = (*_HASHED_CLIENT, "source", "quota_key")
_SOFTWARE = ("software_name", "software_version")

_DEFAULT_FULL_S = QuotaWindow().full_s
LOOKBACK_WINDOWS = MEMORY_WINDOWS + 1  # windows to read before the first reported one
_TREND_WINDOWS = 5  # of the last ten, for a trend
_TREND_FIT = 0.7  # coefficient of determination: a start-up ramp followed by steady usage is no trend
_TREND_REACH_S = 86_400  # a trend over minutes does not extend to tomorrow


@dataclass(frozen=True, slots=True)
class Inputs:
    """Input rows from ClickHouse, with the schemas of `queries`."""

    usage: DataFrame
    telemetry: DataFrame
    instances: DataFrame
    teams: DataFrame
    observed: DataFrame


def utilization(
    inputs: Inputs, when: TimeRange, thresholds: Thresholds, full_s: Mapping[str, float] = MappingProxyType({})
) -> DataFrame:
    """One row per source, client, quota key and window: UTILIZATION_SCHEMA. Windows of `inputs` before `when` only feed
    trends and hysteresis and are not returned. `full_s`: QuotaWindow.full_s of clusters whose brokers are known."""
    # One shuffle serves all windows and joins below: the rows of a client stay together.
    usage = _hashed(inputs.usage.repartition(*_CLIENT))
    measured = _trend(_measured(usage), when.window_ms)
    compared = _with_base(measured.where(definition.WORTH_A_ROW), when.window_ms)
    worst = _worst_broker(compared, thresholds)
    explained = _with_onsets(worst, inputs.observed, when.window_ms, thresholds)
    remembered = held(explained, _SERIES, "value", thresholds.steps, when.window_ms)
    reported = remembered.where(F.col("window_start_ms") >= when.from_ms)
    with_telemetry = reported.join(_hashed(inputs.telemetry), on=[*_HASHED_CLIENT, "window_start_ms"], how="left")
    owned = with_telemetry.join(F.broadcast(inputs.teams), on=["user", "client_id"], how="left")
    seen = owned.join(_sightings(inputs.instances), on=list(_HASHED_CLIENT), how="left")
    return _as_stored(_with_instances(seen, when), when, thresholds, _burst_credit(full_s))


def _hashed(rows: DataFrame) -> DataFrame:
    return rows.withColumn(_HASH, F.xxhash64(*_CLIENT))


def _measured(usage: DataFrame) -> DataFrame:
    """Adds the numbers of a window, and `value`: the greater of them, from which the level is derived; and who takes
    most of a shared quota."""
    culprit = {
        "culprit_user": definition.CULPRIT_USER,
        "culprit_client_id": definition.CULPRIT_CLIENT_ID,
        "culprit_share": definition.CULPRIT_SHARE,
    }
    return _with(_with(usage, {**definition.NUMBERS, **culprit}), {"value": definition.VALUE})


def _with(rows: DataFrame, expressions: Mapping[str, str]) -> DataFrame:
    """Adds columns by SQL expressions that do not refer to each other."""
    return rows.withColumns({name: F.expr(expression) for name, expression in expressions.items()})


def _trend(measured: DataFrame, window_ms: int) -> DataFrame:
    """Adds the trend of the last windows, and the seconds until the bucket reaches its limit if it continues; else
    null."""
    reach = (1 - MEMORY_WINDOWS) * window_ms
    lately = Window.partitionBy(*_SERIES, "broker_id").orderBy("window_start_ms").rangeBetween(reach, 0)
    used, at_s = F.col("group_usage"), F.col("window_start_ms") / 1000
    trend = measured.withColumns(
        {
            "slope": F.regr_slope(used, at_s).over(lately),
            "fit": F.regr_r2(used, at_s).over(lately),
            "windows": F.count("*").over(lately),
        }
    )
    known = (F.col("windows") >= _TREND_WINDOWS) & ((F.col("fit") >= _TREND_FIT) | (F.col("slope") == 0))
    left = F.when(F.col("limit") > F.col("group_usage"), F.col("limit") - F.col("group_usage"))
    left = left.when(F.col("limit").isNotNull(), F.lit(0.0))  # no limit, no time at which it is reached
    near = trend.withColumns(
        {
            "eta_s": F.when(known & (F.col("slope") > 0), F.try_divide(left, F.col("slope"))),
            "trend_per_min": F.when(known, F.col("slope") * 60),
        }
    )
    return near.withColumn("eta_s", F.when(F.col("eta_s") <= _TREND_REACH_S, F.col("eta_s")))


def _with_base(rows: DataFrame, window_ms: int) -> DataFrame:
    """Adds the columns `cause.BASE` of the window before, of the same client at the same broker."""
    before = Window.partitionBy(*_SERIES, "broker_id").orderBy("window_start_ms").rangeBetween(-window_ms, -1)
    known = rows.withColumn("limit_known", (F.col("state") != "unknown").cast("int"))
    based = known.withColumn("base", F.last(F.struct(*cause.BASE)).over(before))
    columns = {f"base_{name}": F.col("base")[name] for name in cause.BASE}
    return based.withColumns({**columns, "has_base": F.col("base").isNotNull().cast("int")}).drop("base")


def _with_onsets(rows: DataFrame, observed: DataFrame, window_ms: int, thresholds: Thresholds) -> DataFrame:
    """Adds `is_onset`, `onset_cause`, `earlier_cause` and what is known of the last onset to rows of worst brokers."""
    series = Window.partitionBy(*_SERIES).orderBy("window_start_ms")
    before, earlier_one = series.rangeBetween(-window_ms, -1), series.rangeBetween(-2 * window_ms, -window_ms - 1)
    earlier = series.rangeBetween(-cause.TOLD_WINDOWS * window_ms, -1)
    seen = rows.join(F.broadcast(observed), on=["cluster", "window_start_ms"], how="left").withColumns(
        {
            "before_value": F.coalesce(F.last("value").over(before), F.lit(0.0)),
            "before_muted_ms": F.coalesce(F.last("muted_ms").over(before), F.lit(0.0)),
            "earlier_value": F.coalesce(F.last("value").over(earlier_one), F.lit(0.0)),
            "earlier_muted_ms": F.coalesce(F.last("muted_ms").over(earlier_one), F.lit(0.0)),
            "seen_before": F.count("*").over(earlier),
            "total_before": F.coalesce(F.last("total_usage").over(before), F.lit(0.0)),
            "own_before": F.coalesce(F.last("usage").over(before), F.lit(0.0)),
            "start_ms": F.col("window_start_ms"),
        }
    )
    marked = _with(seen, {"is_onset": definition.is_onset(thresholds), **cause.COMPARED})
    with_causes = _with(marked, {"onset_cause": f"CASE WHEN is_onset = 1 THEN {cause.ONSET_CAUSE} END"})
    onset = F.when(F.col("is_onset") == 1, F.struct("start_ms", "onset_cause", "own_before"))
    last = with_causes.withColumn("onset", F.last(onset, ignorenulls=True).over(earlier))
    return last.withColumns(
        {
            "earlier_cause": F.coalesce("onset.onset_cause", F.lit("")),
            "onset_ago": ((F.col("start_ms") - F.col("onset.start_ms")) / window_ms).cast("int"),
            "usage_before_onset": F.col("onset.own_before"),
        }
    )


def held(rows: DataFrame, key: Sequence[str], value: str, thresholds: Sequence[float], window_ms: int) -> DataFrame:
    """Adds `held` to rows with `window_start_ms` and `value` (null: 0): how many of the ascending `thresholds` hold.

    A threshold holds from the first window with value >= threshold until the second consecutive window with value <
    threshold - MARGIN. A missing window counts as a value of 0.
    """
    ordered = Window.partitionBy(*key).orderBy("window_start_ms")
    until_now = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    now = F.coalesce(F.col(value), F.lit(0.0))
    missing = (F.col("window_start_ms") - F.lag("window_start_ms").over(ordered)) / window_ms - 1
    known = rows.withColumns({"_value": now, "_before": F.lag(now).over(ordered), "_missing": missing})
    # The latest window of each kind: a maximum since the first row takes one step per row, one over ten windows ten.
    latest: dict[str, Column] = {}
    for number, threshold in enumerate(thresholds):
        low = threshold - MARGIN
        twice = (F.col("_value") < low) & ((F.col("_missing") >= 1) | (F.col("_before") < low))
        on, off = F.col("_value") >= threshold, twice | (F.col("_missing") >= 2)
        latest[f"_on_{number}"] = F.max(F.when(on, F.col("window_start_ms"))).over(until_now)
        latest[f"_off_{number}"] = F.max(F.when(off, F.col("window_start_ms"))).over(until_now)
    marked = known.withColumns(latest)
    remembered = F.col("window_start_ms") - MEMORY_WINDOWS * window_ms
    holds = [
        F.coalesce(
            (F.col(f"_on_{number}") >= remembered)
            & (F.col(f"_on_{number}") >= F.coalesce(f"_off_{number}", F.lit(-1))),
            F.lit(False),
        ).cast("int")
        for number in range(len(thresholds))
    ]
    return marked.withColumn("held", F.greatest(*(h * (n + 1) for n, h in enumerate(holds)))).drop(
        "_value", "_before", "_missing", *latest
    )


def _worst_broker(measured: DataFrame, thresholds: Thresholds) -> DataFrame:
    """Keeps each client's worst broker, with what it uses at all of them."""
    client = ", ".join((*_SERIES, "window_start_ms"))
    order = definition.worst_broker_first(thresholds)
    place = F.expr(f"row_number() OVER (PARTITION BY {client} ORDER BY {order})")
    total = F.sum("usage").over(Window.partitionBy(*_SERIES, "window_start_ms"))
    return measured.withColumns({"place": place, "total_usage": total}).where(F.col("place") == 1)


def _burst_credit(full_s: Mapping[str, float]) -> Column:
    """Bytes that the bucket may send at once before the broker throttles it, by the rate of its newest second, which is
    that of the last `quota.window.num` windows; with Kafka's defaults of the last 10 to 11 s (`Rate.windowSize`)."""
    window_s = F.lit(_DEFAULT_FULL_S)
    for cluster, seconds in full_s.items():
        window_s = F.when(F.col("cluster") == cluster, F.lit(seconds)).otherwise(window_s)
    left = F.greatest(F.col("limit") - F.col("group_last"), F.lit(0.0)) * window_s
    return F.when(F.col("limit").isNotNull(), left)  # greatest() ignores nulls


def _sightings(instances: DataFrame) -> DataFrame:
    """The instances of each client, as an array."""
    sighting = F.struct("last_seen_ms", "client_instance_id", "first_seen_ms", "terminated", *_SOFTWARE)
    return _hashed(instances.groupBy(*_CLIENT).agg(F.collect_list(sighting).alias("sightings")))


def _with_instances(rows: DataFrame, when: TimeRange) -> DataFrame:
    """Adds the number of instances in the window and the software of the newest one. Instances seen within an hour
    before the window's end count, because a muted client cannot push; instances that terminated before the window do
    not."""
    start_ms = F.col("window_start_ms")
    end_ms = start_ms + when.window_ms
    alive = F.filter(
        "sightings",
        lambda one: (
            (one["first_seen_ms"] < end_ms)
            & (one["last_seen_ms"] >= end_ms - INSTANCE_LOOKBACK_S * 1000)
            & ((one["terminated"] == 0) | (one["last_seen_ms"] >= start_ms))
        ),
    )
    ids = F.array_distinct(F.transform("alive", lambda one: one["client_instance_id"]))
    return rows.withColumn("alive", alive).withColumns({"instances": F.size(ids), "software": F.array_max("alive")})


def _as_stored(seen: DataFrame, when: TimeRange, thresholds: Thresholds, burst_credit: Column) -> DataFrame:
    named = seen.withColumns(
        {
            "window_start": F.timestamp_millis("window_start_ms"),
            "window_s": F.lit(when.window_s),
            "burst_credit": F.when(F.col("quota_key").isin(*BYTE_KEYS), burst_credit),
            "team": F.coalesce("team", F.lit(UNOWNED)),
            "usage_avg": F.col("usage"),
            "throttle_ms_max": F.col("throttle_ms"),
            "throttled_s": F.col("muted_ms") / 1000,
            "request_latency_ms_max": F.col("request_latency_ms"),
            "queue_time_ms_max": F.col("queue_time_ms"),
            "records_lag_max": F.col("records_lag"),
            "records_lag_per_min": F.col("lag_per_min"),
            "instances": F.greatest("instances", F.lit(0)),  # size() of a null array is null or -1
            "software_name": F.coalesce("software.software_name", F.lit(UNKNOWN)),
            "software_version": F.coalesce("software.software_version", F.lit(UNKNOWN)),
            "complete": (F.col("window_start_ms") + when.window_ms <= when.to_ms).cast("int"),
        }
    )
    changes = {name: F.get(arrays, F.col("onset_ago") - 1) for name, arrays in cause.CHANGE.items()}
    read = {"reached": definition.reached(thresholds), "rule": definition.RULE, **impact.FELT}
    decided = _with(
        _with(named.withColumns(changes), read),
        {
            "level": definition.level("held", thresholds),
            "instant_level": definition.level("reached", thresholds),
            "impact": impact.IMPACT,
            "impact_reason": impact.IMPACT_REASON,
        },
    )
    return _with(decided, {"reason": definition.reason(thresholds), "cause": cause.CAUSE}).to(UTILIZATION_SCHEMA)
