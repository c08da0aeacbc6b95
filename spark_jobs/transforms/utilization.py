"""Usage, limits, throttling and telemetry of each client and window, on its worst broker: rows of quota_utilization.

Quotas are per broker, so is utilisation: the rate of all clients in the bucket at one broker, by the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from exporters.model import UNKNOWN, QuotaKey
from spark_jobs.clickhouse.queries import BYTE_KEYS, INSTANCE_LOOKBACK_S, UTILIZATION_SCHEMA
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms import quota_precedence, severity

_CLIENT = ("cluster", "user", "client_id")
_CLIENT_WINDOW = (*_CLIENT, "window_start_ms")
_ROW = ("quota_key", *_CLIENT_WINDOW)

_TREND_WINDOWS = 3  # fewer are no trend
_TREND_REACH_S = 86_400  # the trend of some minutes says nothing about tomorrow


@dataclass(frozen=True, slots=True)
class Inputs:
    """What ClickHouse gave, shaped as in `tables`."""

    usage: DataFrame
    limits: DataFrame
    telemetry: DataFrame
    instances: DataFrame


@dataclass(frozen=True, slots=True)
class Run:
    """Which run it is: a later one (`version`) replaces the rows of an earlier one."""

    id: bytes
    version: int


def utilization(inputs: Inputs, when: TimeRange, thresholds: severity.Thresholds, run: Run) -> DataFrame:
    """One row per client, quota key and window: UTILIZATION_SCHEMA."""
    measured = _trend(_shared(_limited(inputs.usage, inputs.limits, when)))
    worst = _worst_broker(measured).where(_worth_a_row())
    told = worst.join(inputs.telemetry, on=list(_CLIENT_WINDOW), how="left")
    seen = told.join(_sightings(inputs.usage, inputs.instances, when), on=list(_CLIENT_WINDOW), how="left")
    return _as_stored(seen, when, thresholds, run)


def _limited(usage: DataFrame, history: DataFrame, when: TimeRange) -> DataFrame:
    """Usage with the limit in force at the end of its window, and the bucket that it fills."""
    until_ms = F.least(F.col("window_start_ms") + when.window_ms, F.lit(when.to_ms)).alias("until_ms")
    clients = usage.select(*_ROW, until_ms).distinct()  # a client has a row per broker
    return usage.join(
        quota_precedence.effective(clients, quota_precedence.intervals(history)), on=list(_ROW), how="left"
    )


def _shared(limited: DataFrame) -> DataFrame:
    """Adds what all clients of the bucket use at the broker: the mean over the time in which any of them was active,
    for they need not run side by side. A client without a limit has a bucket of its own."""
    bucket = Window.partitionBy(
        "cluster",
        "quota_key",
        "broker_id",
        "window_start_ms",
        "matched_entity",
        F.coalesce(F.col("bucket_user"), F.col("user")),
        F.coalesce(F.col("bucket_client_id"), F.col("client_id")),
    )
    grouped = limited.withColumns(
        {
            "group_usage": F.try_divide(
                F.sum(F.col("usage_avg") * F.bit_count("slots")).over(bucket),
                F.bit_count(F.bit_or("slots").over(bucket)),
            ),
            "shared_with": (F.count("*").over(bucket) - 1).cast("int"),
        }
    )
    return grouped.withColumn("utilization", F.when(_is_measured(), F.try_divide("group_usage", "limit")))


def _is_measured() -> Column:
    """Of request_percentage and controller_mutation_rate the gateway sees the throttling only: a rate of 0 beside it
    is none."""
    return F.col("quota_key").isin(*BYTE_KEYS) | (F.col("group_usage") > 0) | (F.col("throttle_ms") == 0)


def _trend(shared: DataFrame) -> DataFrame:
    """Adds the seconds until the bucket is full, if it goes on filling as in the windows so far; else null."""
    so_far = (
        Window.partitionBy("quota_key", *_CLIENT, "broker_id")
        .orderBy("window_start_ms")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    slope = F.regr_slope(F.col("group_usage"), F.col("window_start_ms") / 1000).over(so_far)
    trend = shared.withColumns({"slope": slope, "windows": F.count("*").over(so_far)})
    eta_s = F.try_divide(F.greatest(F.col("limit") - F.col("group_usage"), F.lit(0.0)), F.col("slope"))
    rising = (F.col("windows") >= _TREND_WINDOWS) & (F.col("slope") > 0)
    near = trend.withColumn("eta_s", F.when(rising, eta_s))
    return near.withColumn("eta_s", F.when(F.col("eta_s") <= _TREND_REACH_S, F.col("eta_s")))


def _worst_broker(measured: DataFrame) -> DataFrame:
    """The broker where the client is throttled longest, else nearest to its limit, else busiest."""
    by_badness = Window.partitionBy(*_ROW).orderBy(
        F.col("throttle_ms").desc(),
        F.col("utilization").desc_nulls_last(),
        F.col("usage_avg").desc(),
        F.col("broker_id").asc(),
    )
    return measured.withColumn("badness", F.row_number().over(by_badness)).where(F.col("badness") == 1)


def _worth_a_row() -> Column:
    """Byte rates always; the other quotas where there is one, or where one throttled."""
    return F.col("quota_key").isin(*BYTE_KEYS) | F.col("limit").isNotNull() | (F.col("throttle_ms") > 0)


def _sightings(usage: DataFrame, instances: DataFrame, when: TimeRange) -> DataFrame:
    """Instances and software per client and window. Seen within the hour before the window's end counts: a client
    muted by its throttling cannot push. One that said goodbye before the window does not."""
    windows = usage.select(*_CLIENT_WINDOW).distinct()  # a client has a row per quota key and broker
    end_ms = F.col("window_start_ms") + when.window_ms
    alive = (
        (F.col("first_seen_ms") < end_ms)
        & (F.col("last_seen_ms") >= end_ms - INSTANCE_LOOKBACK_S * 1000)
        & ((F.col("terminated") == 0) | (F.col("last_seen_ms") >= F.col("window_start_ms")))
    )
    newest = F.max_by(F.struct("software_name", "software_version"), F.struct("last_seen_ms", "client_instance_id"))
    return (
        windows.join(instances, on=list(_CLIENT), how="inner")
        .where(alive)
        .groupBy(*_CLIENT_WINDOW)
        .agg(F.countDistinct("client_instance_id").cast("int").alias("instances"), newest.alias("software"))
    )


def _client_throttle() -> Column:
    """What the client felt of this quota: telemetry tells produce from fetch, and no other."""
    return (
        F.when(F.col("quota_key") == QuotaKey.PRODUCER_BYTE_RATE, F.col("produce_throttle_ms"))
        .when(F.col("quota_key") == QuotaKey.CONSUMER_BYTE_RATE, F.col("fetch_throttle_ms"))
        .otherwise(F.greatest("produce_throttle_ms", "fetch_throttle_ms"))
    )


def _as_stored(seen: DataFrame, when: TimeRange, thresholds: severity.Thresholds, run: Run) -> DataFrame:
    named = seen.withColumns(
        {
            "window_start": F.timestamp_millis("window_start_ms"),
            "window_s": F.lit(when.window_s),
            "matched_entity": F.coalesce("matched_entity", F.lit("")),
            "usage": F.col("usage_avg"),
            "throttle_ms_max": F.col("throttle_ms"),
            "client_throttle_ms_max": _client_throttle(),
            "instances": F.coalesce("instances", F.lit(0)),
            "software_name": F.coalesce("software.software_name", F.lit(UNKNOWN)),
            "software_version": F.coalesce("software.software_version", F.lit(UNKNOWN)),
            "level": severity.level(F.col("throttle_ms"), F.col("utilization"), thresholds),
            "run_id": F.lit(run.id),
            "run_version": F.lit(run.version),
        }
    )
    told = named.withColumn("reason", severity.reason(thresholds))
    return told.select(*(F.col(field.name).cast(field.dataType) for field in UTILIZATION_SCHEMA))
