"""Usage, limits, throttling and telemetry of each client and window, on its worst broker: of what rows of
quota_utilization are made when they are staged.

Quotas are per broker, and so is utilisation: the rate of all clients in the bucket at one broker / the limit. Levels
have hysteresis: entered at once, left when the value stays below the threshold for two consecutive windows. Its memory
is bounded (MEMORY_WINDOWS), so a level does not depend on where the range of a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from exporters.model import UNKNOWN, UNOWNED
from quota_metrics.levels import cause, definition
from quota_metrics.levels.definition import MARGIN, MEMORY_WINDOWS, Thresholds
from quota_metrics.windows import QuotaWindow
from spark_jobs.clickhouse.queries import BYTE_KEYS, INSTANCE_LOOKBACK_S, WINDOWS_SCHEMA
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
    """One row per source, client, quota key and window, sorted within partitions: WINDOWS_SCHEMA.

    Windows of `inputs` before `when` only feed trends and hysteresis and are not returned. `full_s`: QuotaWindow.full_s
    of clusters whose brokers are known."""
    # One shuffle serves all windows and joins below: the rows of a client stay together.
    usage = _carried(_measured(inputs.usage)).repartition(*_CLIENT)
    compared = _compared(_hashed(usage), when.window_ms)
    worst = _worst_broker(compared.where(definition.WORTH_A_ROW), thresholds)
    observed = worst.join(F.broadcast(inputs.observed), on=["cluster", "window_start_ms"], how="left")
    remembered = _remembered(_before(observed, when.window_ms), when.window_ms, thresholds)
    reported = remembered.where(F.col("window_start_ms") >= when.from_ms)
    with_telemetry = reported.join(_hashed(inputs.telemetry), on=[*_HASHED_CLIENT, "window_start_ms"], how="left")
    owned = with_telemetry.join(F.broadcast(inputs.teams), on=["user", "client_id"], how="left")
    seen = owned.join(_sightings(inputs.instances), on=list(_HASHED_CLIENT), how="left")
    return _as_staged(_with_instances(seen, when), _burst_credit(full_s))


def _hashed(rows: DataFrame) -> DataFrame:
    return rows.withColumn(_HASH, F.xxhash64(*_CLIENT))


def _with(rows: DataFrame, expressions: Mapping[str, str]) -> DataFrame:
    """Adds columns by SQL expressions that do not refer to each other."""
    return rows.withColumns({name: F.expr(expression) for name, expression in expressions.items()})


def _measured(usage: DataFrame) -> DataFrame:
    """Adds the numbers of a window, and `value`: the greater of them, from which the level is derived; and who takes
    most of a shared quota."""
    numbers = {
        **definition.NUMBERS,
        "culprit_user": definition.CULPRIT_USER,
        "culprit_client_id": definition.CULPRIT_CLIENT_ID,
        "culprit_share": definition.CULPRIT_SHARE,
        "limit_known": "int(state <> 'unknown')",
    }
    return _with(_with(usage, numbers), {"value": definition.VALUE})


def _carried(measured: DataFrame) -> DataFrame:
    """Puts the columns that no window function reads into one, `carried`: a row is copied at each of them, field by
    field."""
    read = (
        *(*_SERIES[1:], "window_start_ms", "broker_id", "elapsed_s", "value", "muted_ms"),
        *cause.BASE,
    )
    others = [name for name in (*WINDOWS_SCHEMA.names, "group_last") if name in measured.columns and name not in read]
    return measured.select(*read, F.struct(*others).alias("carried"))


def _compared(usage: DataFrame, window_ms: int) -> DataFrame:
    """Adds the trend of the last windows, the seconds until the bucket reaches its limit if it continues, else null,
    and `base`: the window before, of the same client at the same broker; null without usage there."""
    series = Window.partitionBy(*_SERIES, "broker_id").orderBy("window_start_ms")
    lately = series.rangeBetween((1 - MEMORY_WINDOWS) * window_ms, 0)
    used, at_s = F.col("group_usage"), F.col("window_start_ms") / 1000
    before = F.struct(F.expr(definition.WORTH_A_ROW).alias("is_worth"), "window_start_ms", *cause.BASE)
    trend = usage.withColumns(
        {
            "slope": F.regr_slope(used, at_s).over(lately),
            "fit": F.regr_r2(used, at_s).over(lately),
            "windows": F.count("*").over(lately),
            "base": F.lag(before).over(series),
        }
    )
    known = (F.col("windows") >= _TREND_WINDOWS) & ((F.col("fit") >= _TREND_FIT) | (F.col("slope") == 0))
    left = F.when(F.col("limit") > F.col("group_usage"), F.col("limit") - F.col("group_usage"))
    left = left.when(F.col("limit").isNotNull(), F.lit(0.0))  # no limit, no time at which it is reached
    near = trend.withColumns(
        {
            "eta_s": F.when(known & (F.col("slope") > 0), F.try_divide(left, F.col("slope"))),
            "trend_per_min": F.when(known, F.col("slope") * 60),
            "base": F.when(F.col("base.is_worth") & _was_ago("base", window_ms), F.col("base")),
        }
    )
    return near.withColumn("eta_s", F.when(F.col("eta_s") <= _TREND_REACH_S, F.col("eta_s"))).drop(
        "slope", "fit", "windows"
    )


def _was_ago(lagged: str, ms: int) -> Column:
    """Whether an earlier row, a struct, is that long before the row."""
    return F.col(f"{lagged}.window_start_ms") == F.col("window_start_ms") - ms


def _worst_broker(measured: DataFrame, thresholds: Thresholds) -> DataFrame:
    """Keeps each client's worst broker, with what it uses at all of them."""
    client = ", ".join((*_SERIES, "window_start_ms"))
    ordered = f"PARTITION BY {client} ORDER BY {definition.worst_broker_first(thresholds)}"
    every = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    places = {"place": f"row_number() OVER ({ordered})", "total_usage": f"sum(usage) OVER ({ordered} {every})"}
    return _with(measured, places).where(F.col("place") == 1).drop("place")


def _before(rows: DataFrame, window_ms: int) -> DataFrame:
    """Adds to rows of worst brokers what causes read of the windows before, and `last` and `missing`: the value of the
    row before, null without, and how many windows are missing between."""
    series = Window.partitionBy(*_SERIES).orderBy("window_start_ms")
    now = F.struct("window_start_ms", "value", "muted_ms", "total_usage", "usage")
    lagged = rows.withColumns(
        {
            "one": F.lag(now).over(series),
            "two": F.lag(now, 2).over(series),
            "seen_before": F.count("*").over(series.rangeBetween(-cause.TOLD_WINDOWS * window_ms, -1)),
        }
    )
    before = F.when(_was_ago("one", window_ms), F.col("one"))
    earlier = F.when(_was_ago("two", 2 * window_ms), F.col("two")).when(_was_ago("one", 2 * window_ms), F.col("one"))
    named = lagged.withColumns({"before": before, "earlier": earlier})
    none = F.lit(0.0)
    return named.withColumns(
        {
            "before_value": F.coalesce("before.value", none),
            "before_muted_ms": F.coalesce("before.muted_ms", none),
            "earlier_value": F.coalesce("earlier.value", none),
            "earlier_muted_ms": F.coalesce("earlier.muted_ms", none),
            "total_before": F.coalesce("before.total_usage", none),
            "own_before": F.coalesce("before.usage", none),
            "start_ms": F.col("window_start_ms"),
            "last": F.when(F.col("one").isNotNull(), F.coalesce("one.value", none)),
            "missing": (F.col("window_start_ms") - F.col("one.window_start_ms")) / window_ms - 1,
            "has_base": F.col("base").isNotNull().cast("int"),
            **{f"base_{name}": F.col("base")[name] for name in cause.BASE},
        }
    )


def _remembered(rows: DataFrame, window_ms: int, thresholds: Thresholds) -> DataFrame:
    """Adds what the windows before leave: `onset`, the last one in TOLD_WINDOWS, which may be the row itself, with
    cause.ONSET and the client's rate before it, `onset_ago` windows; and `held`, how many of the ascending thresholds
    hold.

    A threshold holds from the first window with value >= threshold until the second consecutive window with value <
    threshold - MARGIN. A missing window counts as a value of 0.
    """
    marked = _with(rows, {"is_onset": definition.is_onset(thresholds), **cause.COMPARED})
    named = _with(marked, {"onset_kind": cause.ONSET_KIND})
    series = Window.partitionBy(*_SERIES).orderBy("window_start_ms")
    until_now = series.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    lately = series.rangeBetween(-cause.TOLD_WINDOWS * window_ms, 0)
    onset = F.when(F.col("is_onset") == 1, F.struct(*cause.ONSET, "own_before"))
    # The latest window of each kind: a maximum since the first row takes one step per row, one over ten windows ten.
    latest = {"onset": F.last(onset, ignorenulls=True).over(lately)}
    for number, threshold in enumerate(thresholds.steps):
        on, off = _turns(threshold)
        latest[f"on_{number}"] = F.max(F.when(on, F.col("window_start_ms"))).over(until_now)
        latest[f"off_{number}"] = F.max(F.when(off, F.col("window_start_ms"))).over(until_now)
    remembered = F.col("window_start_ms") - MEMORY_WINDOWS * window_ms
    holds = [
        F.when(
            (F.col(f"on_{number}") >= remembered) & (F.col(f"on_{number}") >= F.coalesce(f"off_{number}", F.lit(-1))),
            F.lit(number + 1),
        ).otherwise(0)
        for number in range(len(thresholds.steps))
    ]
    ago_ms = F.col("window_start_ms") - F.col("onset.start_ms")
    return named.withColumns(latest).withColumns(
        {"held": F.greatest(*holds), "onset_ago": (ago_ms / window_ms).cast("int")}
    )


def _turns(threshold: float) -> tuple[Column, Column]:
    """Whether the threshold begins to hold, and whether it ends."""
    low = threshold - MARGIN
    now = F.coalesce("value", F.lit(0.0))
    twice = (now < low) & ((F.col("missing") >= 1) | (F.col("last") < low))
    return now >= threshold, twice | (F.col("missing") >= 2)


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


def _as_staged(seen: DataFrame, burst_credit: Column) -> DataFrame:
    # The window functions have sorted them so, and a broadcast join keeps it: Spark sorts only after other joins.
    ordered = seen.sortWithinPartitions(*_SERIES, "window_start_ms")
    unpacked = ordered.select("*", "carried.*").drop("carried")
    named = unpacked.withColumns(
        {
            "burst_credit": F.when(F.col("quota_key").isin(*BYTE_KEYS), burst_credit),
            "team": F.coalesce("team", F.lit(UNOWNED)),
            "instances": F.greatest("instances", F.lit(0)),  # size() of a null array is null or -1
            "software_name": F.coalesce("software.software_name", F.lit(UNKNOWN)),
            "software_version": F.coalesce("software.software_version", F.lit(UNKNOWN)),
            "usage_before_onset": F.col("onset.own_before"),
            **{name: F.get(arrays, F.col("onset_ago") - 1) for name, arrays in cause.CHANGE.items()},
            **{f"{cause.OF_ONSET}{name}": F.col("onset")[name] for name in cause.ONSET},
        }
    )
    return named.to(WINDOWS_SCHEMA)
