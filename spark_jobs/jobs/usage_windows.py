"""Reads usage as windows, from the minutes of usage_1m, which is brought up to date first; for the jobs over weeks as
the history of buckets.

Limits that rows lack are resolved here, by the driver: rows of the gateway and of JMX have theirs.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.records import records
from quota_metrics.minutes.resolved_limits import recorded_limits
from quota_metrics.minutes.rows import ClientLimits
from quota_metrics.minutes.usage_minutes import complete
from quota_metrics.minutes.windows import windows_of
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.slices import SLICE_OF_MINUTES, slices_of_clients, slices_of_time, step_ms
from spark_jobs.clickhouse.source import NothingToReadError, in_tasks
from spark_jobs.options import JobOptions
from spark_jobs.session import parallelism
from spark_jobs.time_range import STEP_MS, TimeRange


class CountedRange(NamedTuple):
    """A range whose minutes usage_1m has, with their row counts, ordered by time. `bad`: rows that are not usable."""

    when: TimeRange
    source: str
    cluster: str
    counts: list[dict[str, Any]]
    bad: int

    def samples_since(self, from_ms: int) -> int:
        """How many usable rows there are from `from_ms` on."""
        steps = (count for count in self.counts if count["start_ms"] > from_ms - step_ms(self.when))
        return sum(count["samples"] for count in steps)


def count_minutes(clickhouse: ClickHouse, when: TimeRange, source: str, cluster: str) -> CountedRange:
    """Brings usage_1m up to date and counts the rows. Raises StoreError."""
    complete(clickhouse, source, when.from_ms, when.to_ms)
    span = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": source, "cluster": cluster}
    (bad,) = clickhouse.rows(queries.BAD_ROWS, span)
    counts = clickhouse.rows(queries.COUNTS, {**span, "step_ms": step_ms(when)})
    return CountedRange(when, source, cluster, counts, bad["bad"])


def limits_of(clickhouse: ClickHouse, counted: CountedRange) -> ClientLimits:
    """The limits of clients whose rows do not have them. Raises StoreError."""
    if not any(count["unresolved"] for count in counted.counts):
        return ClientLimits({})
    when = counted.when
    span = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": counted.source, "cluster": counted.cluster}
    clients = records(clickhouse.table(queries.UNRESOLVED_CLIENTS, span))
    return recorded_limits(clickhouse, clients, when.from_ms, when.to_ms, counted.cluster)


def slices_of(clickhouse: ClickHouse, counted: CountedRange, cores: int, limits: ClientLimits) -> list[dict[str, Any]]:
    """Query parameters of each slice of the range. Raises StoreError."""
    of_time = ({**part, "source": counted.source} for part in slices_of_time(counted.counts, counted.when, cores))
    return list(slices_of_clients(clickhouse, of_time, limits))


def read_usage(spark: SparkSession, clickhouse: ClickHouse, counted: CountedRange, limits: ClientLimits) -> DataFrame:
    """Rows of USAGE_SCHEMA, one Spark task per slice: the windows of `counted.when`. Raises StoreError."""
    slices = slices_of(clickhouse, counted, parallelism(spark.sparkContext), limits)
    when = counted.when

    def windows(number: int) -> Iterator[pa.Table]:
        minutes = clickhouse.table(SLICE_OF_MINUTES, slices[number])
        yield windows_of(minutes, when.window_s, when.to_ms, limits)

    return in_tasks(spark, len(slices), windows, queries.USAGE_SCHEMA)


def history_of(usage: DataFrame) -> DataFrame:
    """Rows of each bucket, broker and five minutes: its limit, usage as shares of it, and for how long a member of it
    was muted, in which alone they differ. Of `read_usage`."""
    buckets = usage.where("state = 'limited' AND limit > 0 AND (usage_rank = 1 OR muted_ms > 0)")
    return buckets.select(
        *("cluster", "source", "quota_key", F.col("bucket_user").alias("user")),
        *(F.col("bucket_client_id").alias("client_id"), F.col("broker_id").cast("int").alias("broker_id")),
        F.expr(f"window_start_ms DIV {STEP_MS}").alias("step"),
        *("limit", "matched_entity", F.expr("group_usage / limit").alias("mean")),
        *(F.expr("group_p95 / limit").alias("p95"), "muted_ms"),
    )


def recorded_usage(spark: SparkSession, clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> DataFrame:
    """`read_usage` of the range of a job, with usage_1m up to date and the limits resolved that rows lack. Raises
    NothingToReadError, StoreError."""
    counted = count_steps(clickhouse, options, job_run)
    job_run.begin("resolving the limits of clients")
    return read_usage(spark, clickhouse, counted, limits_of(clickhouse, counted))


def count_steps(clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> CountedRange:
    """The range from the grid of steps on, with usage_1m up to date. Raises NothingToReadError, StoreError."""
    when = TimeRange(options.when.from_ms - options.when.from_ms % STEP_MS, options.when.to_ms, STEP_MS // 1000)
    job_run.begin("updating usage_1m")
    counted = count_minutes(clickhouse, when, options.source, options.cluster)
    job_run.rows_in = counted.samples_since(when.from_ms)
    if not counted.counts:
        raise NothingToReadError(f"there is no usage of source {options.source} in this time")
    return counted
