"""Steps shared by the jobs over weeks: start Spark, update usage_1m, resolve limits, read the history of buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.rows import ClientLimits
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.source import NothingToReadError, clickhouse_of, source_errors
from spark_jobs.jobs.usage_windows import CountedRange, counted, limits_of, read_usage
from spark_jobs.options import JobOptions
from spark_jobs.session import progress, session
from spark_jobs.time_range import MINUTE_MS, TimeRange

STEP_S = 300


@contextmanager
def started(name: str, options: JobOptions) -> Iterator[tuple[JobRun, SparkSession, ClickHouse]]:
    """The recorded run, a Spark session and the client of the store. Raises ValueError (url), JavaError, StoreError."""
    clickhouse = clickhouse_of(options.url, options.password)
    job_run = JobRun(clickhouse, name, options)
    with job_run, source_errors(), session(name, options.master) as spark, progress(name, spark.sparkContext):
        yield job_run, spark, clickhouse


def read_history(spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, limits: ClientLimits) -> DataFrame:
    """One row per bucket, broker and five minutes: its limit, usage and demand as shares of it. Raises StoreError."""
    usage = read_usage(spark, clickhouse, hours, limits)
    # The row of a bucket's busiest member has the figures of the whole bucket.
    buckets = usage.where("usage_rank = 1 AND state = 'limited' AND limit > 0")
    return buckets.select(
        *("cluster", "source", "quota_key", F.col("bucket_user").alias("user")),
        *(F.col("bucket_client_id").alias("client_id"), F.col("broker_id").cast("int").alias("broker_id")),
        F.expr(f"window_start_ms DIV {STEP_S * 1000}").alias("step"),
        *("limit", "matched_entity", F.expr("group_usage / limit").alias("mean")),
        *(F.expr("group_p95 / limit").alias("p95"), "muted_ms"),
    )


def recorded_history(spark: SparkSession, clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> DataFrame:
    """`read_history` of the range of a job, with usage_1m up to date and the limits resolved that rows lack.

    Raises NothingToReadError, StoreError."""
    hours = stored_hours(clickhouse, options, job_run)
    job_run.begin("resolving the limits of clients")
    return read_history(spark, clickhouse, hours, limits_of(clickhouse, hours, options.cluster))


def stored_hours(clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> CountedRange:
    """The range on the grid of steps, with usage_1m up to date. It ends with the last minute that is over: what a
    minute of usage_1m has sent cannot be divided, and would be the usage of the seconds before an end within it.

    Raises NothingToReadError, StoreError."""
    from_ms, to_ms = options.when.from_ms - options.when.from_ms % (STEP_S * 1000), options.when.to_ms
    when = TimeRange(from_ms, max(to_ms - to_ms % MINUTE_MS, from_ms + MINUTE_MS), STEP_S)
    job_run.begin("updating usage_1m")
    hours = counted(clickhouse, when, options.source, options.cluster)
    job_run.rows_in = sum(count["samples"] for count in hours.counts)
    if not hours.counts:
        raise NothingToReadError(f"there is no usage of source {options.source} in this time")
    return hours
