"""What the clients of each bucket want, from their usage in steps of five minutes, also as a series of numbers from
which the jobs forecast. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from spark_jobs.time_range import DAY_MS, STEP_MS, TimeRange

if TYPE_CHECKING:
    import pandas as pd  # the driver of quota-suggest does without

QUOTA = ("cluster", "source", "quota_key", "user", "client_id")
BUCKET = (*QUOTA, "broker_id")
_FEWEST_DAYS = 14  # from first to last; less history gives no growth figure
# Enough buckets per task to amortise the start of a Python worker; enough tasks to keep each one small.
_TASKS = 64
_OF_BUCKET = (*BUCKET, "step", "limit", "matched_entity", "mean", "p95")  # what its members have in common
_MOST_MUTED = 0.9  # share of five minutes: beyond it too little was sent to say at what rate
USAGE, MUTED_SHARE = "usage", "usage / (1 - muted share)"
UNKNOWN_DEMAND = "unknown: muted for nearly all of the time, usage is a lower bound"
# Of a bucket the greatest of its brokers.
_GREATEST = ("need", "demand_low", "demand_peak", "usage_mean", "usage_p95", "usage_peak", "days", "throttled_share")


def wanted_share() -> Column:
    """What the clients of five minutes wanted, as a share of the limit; NULL where they were muted for nearly all of
    them. Of a row of `history_of`."""
    muted = _muted_share()
    return F.when(muted <= _MOST_MUTED, F.greatest("p95", F.col("mean") / (1 - muted)))


def by_task(history: DataFrame, last_step: int) -> GroupedData:
    """The rows up to `last_step` with what clients wanted (`wanted`), each bucket within one of _TASKS groups."""
    # Who was muted for nearly all of five minutes wanted the limit, or more.
    wanted = F.coalesce(wanted_share(), F.greatest("p95", F.lit(1.0)))
    task = F.pmod(F.xxhash64(*BUCKET), F.lit(_TASKS)).alias("task")
    return history.where(F.col("step") <= last_step).withColumn("wanted", wanted).groupBy(task)


class RecordedShares(NamedTuple):
    """A bucket, one value per step from `first_step` on, as shares of one limit: a limit that changed is no change of
    what clients do."""

    wanted: npt.NDArray[np.float64]
    used: npt.NDArray[np.float64]
    first_step: int
    limit: float


def recorded(bucket: pd.DataFrame, last_step: int, limit: float | None = None) -> RecordedShares:
    """From the rows of one bucket in a group of `by_task`. `limit`: that of the newest row if None. Steps without a row
    are 0 (idle); of duplicate steps the greater value counts."""
    steps, limits = bucket["step"].to_numpy(np.int64), bucket["limit"].to_numpy(float)
    first, newest = int(steps.min()), float(limits[steps.argmax()]) if limit is None else limit
    wanted, used = np.zeros((2, last_step - first + 1))
    for series, column in ((wanted, "wanted"), (used, "p95")):
        np.maximum.at(series, steps - first, bucket[column].to_numpy(float) * limits / newest)
    return RecordedShares(wanted, used, first, newest)


def _muted_share() -> Column:
    return F.least(F.col("muted_ms") / STEP_MS, F.lit(1.0))


def is_whole_day(when: TimeRange) -> Column:
    """Whether `day`, counted from the epoch, lies wholly in the range."""
    return F.col("day").between(-(-when.from_ms // DAY_MS), when.to_ms // DAY_MS - 1)


def of_week_before(*keys: str) -> Column:
    """`of_day` of the same weekday one week before, NULL without it."""
    return F.first("of_day").over(Window.partitionBy(*keys).orderBy("day").rangeBetween(-7, -7))


def growth_per_week() -> Column:
    """The median change of `of_day`, which is NULL for days that are not whole, to `week_before`, as a share of its
    mean: weekdays differ without growth."""
    day = F.when(F.col("of_day").isNotNull(), F.col("day"))
    change = F.percentile(F.col("of_day") - F.col("week_before"), 0.5)
    return F.when(F.max(day) - F.min(day) >= _FEWEST_DAYS - 1, F.try_divide(change, F.avg("of_day")))


def needs(history: DataFrame, when: TimeRange) -> DataFrame:
    """Per quota and bucket what it uses and needs at the broker at which that is most: a limit holds at each broker.

    Usage under throttling is a lower bound of demand. While the broker reads them, clients send at usage / (1 - muted
    share): that is the upper bound, because a backlog is sent in it as well. The demand is known where it is known at
    all brokers: where clients were muted for nearly all of the time, it is not. Input: rows of `history_of` in the
    range."""
    need = F.coalesce("demand_high", "demand_low")
    # One shuffle: days, brokers and buckets are then groups within the partitions.
    at_brokers = _at_brokers(history.repartition(*QUOTA), when).withColumn("need", need)
    is_known = F.bool_and(F.col("demand_high").isNotNull())
    of_busiest = F.struct("broker_id", "newest", "demand_source", "growth_per_week")
    buckets = at_brokers.groupBy(*QUOTA).agg(
        F.max_by(of_busiest, F.struct("need", -F.col("broker_id"))).alias("busiest"),
        F.when(is_known, F.max("demand_high")).alias("demand_high"),
        F.when(~is_known, F.lit(UNKNOWN_DEMAND)).alias("unknown"),
        F.max("throttled").alias("throttled"),
        F.min("first_day").alias("first_day"),
        F.max("last_day").alias("last_day"),
        *(F.max(name).alias(name) for name in _GREATEST),
    )
    return buckets.select(
        *QUOTA,
        F.col("busiest.broker_id").alias("broker_id"),
        F.col("busiest.newest.limit").alias("limit"),
        F.col("throttled.limit").alias("throttled_limit"),
        F.col("busiest.newest.matched_entity").alias("matched_entity"),
        F.coalesce("unknown", "busiest.demand_source").alias("demand_source"),
        F.col("busiest.growth_per_week").alias("growth_per_week"),
        *("demand_high", "first_day", "last_day", *_GREATEST),
    )


def _at_brokers(history: DataFrame, when: TimeRange) -> DataFrame:
    """Each bucket at each broker, in units of its key: usage is counted whichever limit was in force. Of members that
    share it the one counts that was muted longest: a broker may throttle one and not the other."""
    used, day = F.greatest("p95", "mean") * F.col("limit"), F.expr(f"step div {DAY_MS // STEP_MS}")
    of_buckets = history.groupBy(*_OF_BUCKET).agg(F.max("muted_ms").alias("muted_ms"))
    steps = of_buckets.withColumns(
        {"used": used, "day": day, "muted": _muted_share(), "wanted": wanted_share() * F.col("limit")}
    )
    day_p95 = F.percentile("used", 0.95).over(Window.partitionBy(*BUCKET, "day"))
    steps = steps.withColumn("of_day", F.when(is_whole_day(when), day_p95))
    steps = steps.withColumn("week_before", of_week_before(*BUCKET))
    is_known = F.count("wanted") >= 0.99 * F.count("*")
    demand = F.percentile(F.coalesce("wanted", "used"), 0.99)
    return steps.groupBy(*BUCKET).agg(
        F.max_by(F.struct("limit", "matched_entity"), "step").alias("newest"),
        F.avg(F.col("mean") * F.col("limit")).alias("usage_mean"),
        F.percentile("used", 0.95).alias("usage_p95"),
        F.percentile("used", 0.99).alias("demand_low"),
        F.max("used").alias("usage_peak"),
        growth_per_week().alias("growth_per_week"),
        F.avg((F.col("muted_ms") > 0).cast("double")).alias("throttled_share"),
        F.max(F.when(F.col("muted_ms") > 0, F.struct("step", "limit"))).alias("throttled"),
        F.count_distinct("day").alias("days"),
        F.min("day").alias("first_day"),
        F.max("day").alias("last_day"),
        F.max(F.coalesce("wanted", "used")).alias("demand_peak"),
        F.when(is_known, demand).alias("demand_high"),
        F.when(F.max("muted") <= 0, F.lit(USAGE))
        .when(is_known, F.lit(MUTED_SHARE))
        .otherwise(F.lit(UNKNOWN_DEMAND))
        .alias("demand_source"),
    )
