"""What the clients of each bucket want, from their usage in steps of five minutes. No I/O, no clock."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quota_metrics.suggestion.limits import TARGET

QUOTA = ("cluster", "source", "quota_key", "user", "client_id")
BUCKET = (*QUOTA, "broker_id")
_STEPS_OF_DAY = 288
_FEWEST_DAYS = 7  # less history gives no growth figure
_STEP_MS = 300_000.0
_MOST_MUTED = 0.9  # share of five minutes: beyond it too little was sent to say at what rate
USAGE, MUTED_SHARE = "usage", "usage / (1 - muted share)"
UNKNOWN_DEMAND = "unknown: muted for nearly all of the time, usage is a lower bound"


def wanted_share() -> Column:
    """What the clients of five minutes wanted, as a share of the limit; NULL where they were muted for nearly all of
    them. Of a row with the columns of HISTORY_SCHEMA."""
    muted = _muted_share()
    return F.when(muted <= _MOST_MUTED, F.greatest("p95", F.col("mean") / (1 - muted)))


def wanted_at_least() -> Column:
    """The same, never NULL: who was muted for nearly all of five minutes wanted the limit, or more."""
    return F.coalesce(wanted_share(), F.greatest("p95", F.lit(1.0)))


def _muted_share() -> Column:
    return F.least(F.col("muted_ms") / _STEP_MS, F.lit(1.0))


def demands(history: DataFrame) -> DataFrame:
    """Per quota and bucket, on its busiest broker: utilisation, growth, the share of time at the limit, what the
    clients wanted, and the limit of which the 99th percentile of what they wanted in five minutes is 80 %, which is no
    lower than the limit under which they were throttled.

    Usage under throttling is a lower bound of demand. While the broker reads them, clients send at usage / (1 - muted
    share): that is the upper bound, because a backlog is sent in it as well. Without a bound (muted for nearly all of
    the time) the demand is unknown, and the suggested limit goes by usage. Input: rows with the columns of
    HISTORY_SCHEMA."""
    judged = _judged(history)
    above = F.size(F.filter("all_wanted", lambda wanted: wanted > F.col("suggested_limit"))) / F.size("all_wanted")
    after = F.when(F.col("demand_high").isNotNull(), above)
    brokers = _of_brokers(judged).withColumn("throttled_after", after)
    both = brokers.join(_growth(judged), on=list(BUCKET), how="left")
    busiest = Window.partitionBy(*QUOTA).orderBy(F.col("utilization_p99").desc(), "broker_id")
    worst = both.withColumn("place", F.row_number().over(busiest)).where(F.col("place") == 1)
    return worst.select(
        *BUCKET,
        F.col("newest.limit").alias("limit"),
        F.col("newest.matched_entity").alias("matched_entity"),
        *("utilization_mean", "utilization_p95", "utilization_p99", "utilization_peak", "growth_per_week"),
        *("throttled_share", "throttled_before", "throttled_after", "suggested_limit"),
        *("demand_low", "demand_high", "demand_source"),
    )


def needs(history: DataFrame) -> DataFrame:
    """Per quota and bucket what it needs at the broker at which it needs most: a limit holds at each broker. The demand
    is known where it is known at all brokers. Input: rows with the columns of HISTORY_SCHEMA."""
    need = F.coalesce("demand_high", "demand_low")
    at_brokers = _of_brokers(_judged(history)).withColumn("need", need)
    is_known = F.bool_and(F.col("demand_high").isNotNull())
    most = F.max_by(F.struct("broker_id", "newest", "demand_source"), F.struct("need", -F.col("broker_id")))
    found = at_brokers.groupBy(*QUOTA).agg(
        most.alias("most"),
        F.max("need").alias("need"),
        F.max("demand_low").alias("demand_low"),
        F.when(is_known, F.max("demand_high")).alias("demand_high"),
        F.when(~is_known, F.lit(UNKNOWN_DEMAND)).alias("unknown"),
        F.max("demand_peak").alias("demand_peak"),
        F.max("days").alias("days"),
        F.max("throttled_share").alias("throttled_share"),
    )
    return found.select(
        *QUOTA,
        F.col("most.broker_id").alias("broker_id"),
        F.col("most.newest.limit").alias("limit"),
        F.col("most.newest.matched_entity").alias("matched_entity"),
        F.coalesce("unknown", "most.demand_source").alias("demand_source"),
        *("need", "demand_low", "demand_high", "demand_peak", "days", "throttled_share"),
    )


def _judged(history: DataFrame) -> DataFrame:
    """Each five minutes with what was used and wanted, and the share of the newest limit."""
    newest = F.max_by(F.struct("limit", "matched_entity"), "step")
    used = F.col("p95") * F.col("limit")  # usage is counted whichever limit was in force
    current = history.withColumn("used", used).withColumn("newest", newest.over(Window.partitionBy(*BUCKET)))
    now, day = F.try_divide("used", "newest.limit"), F.expr(f"step div {_STEPS_OF_DAY}")
    wanted = wanted_share() * F.col("limit")
    return current.withColumns({"now": now, "day": day, "muted": _muted_share(), "wanted": wanted})


def _growth(judged: DataFrame) -> DataFrame:
    daily = judged.groupBy(*BUCKET, "day").agg(F.percentile("now", 0.95).alias("day_p95"))
    slope = F.try_divide(F.regr_slope("day_p95", "day") * 7, F.avg("day_p95"))
    return daily.groupBy(*BUCKET).agg(F.when(F.count("*") >= _FEWEST_DAYS, slope).alias("growth_per_week"))


def _of_brokers(judged: DataFrame) -> DataFrame:
    """Each bucket at each broker."""
    is_known = F.count("wanted") >= 0.99 * F.count("*")
    demand = F.percentile(F.coalesce("wanted", "used"), 0.99)
    wanted_limit = F.when(is_known, demand).otherwise(F.percentile("used", 0.99)) / TARGET
    # Throttled in bursts that five minutes do not show: it needs what it has, or more.
    throttled_limit = F.when(F.max("muted_ms") > 0, F.first("newest")["limit"])
    return judged.groupBy(*BUCKET).agg(
        F.first("newest").alias("newest"),
        F.avg(F.try_divide(F.col("mean") * F.col("limit"), "newest.limit")).alias("utilization_mean"),
        F.percentile("now", 0.95).alias("utilization_p95"),
        F.percentile("now", 0.99).alias("utilization_p99"),
        F.max("now").alias("utilization_peak"),
        F.avg((F.col("muted_ms") > 0).cast("double")).alias("throttled_share"),
        F.count_distinct("day").alias("days"),
        F.max(F.coalesce("wanted", "used")).alias("demand_peak"),
        F.avg((F.col("now") > 1).cast("double")).alias("throttled_before"),
        F.percentile("used", 0.99).alias("demand_low"),
        F.when(is_known, demand).alias("demand_high"),
        F.when(F.max("muted") <= 0, F.lit(USAGE))
        .when(is_known, F.lit(MUTED_SHARE))
        .otherwise(F.lit(UNKNOWN_DEMAND))
        .alias("demand_source"),
        F.greatest(wanted_limit, throttled_limit, F.lit(1.0)).alias("suggested_limit"),
        F.collect_list(F.coalesce("wanted", "used")).alias("all_wanted"),
    )
