"""Steps shared by the jobs over weeks: update usage_1m, resolve limits, read the history of buckets from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from exporters.clickhouse.client import ClickHouse
from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery
from spark_jobs.clickhouse.queries import schema
from spark_jobs.clickhouse.runs import JobRun, Run
from spark_jobs.clickhouse.source import NothingToReadError, read_slices
from spark_jobs.jobs.usage_windows import CountedRange, resolve_limits, slices_of, stored_counts
from spark_jobs.options import JobOptions
from spark_jobs.time_range import TimeRange

STEP_S = 300
_MINUTE_MS = 60_000
HISTORY_SCHEMA = schema(
    cluster=T.StringType,
    source=T.StringType,
    quota_key=T.StringType,
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    step=T.LongType,
    limit=T.DoubleType,
    matched_entity=T.StringType,
    mean=T.DoubleType,
    p95=T.DoubleType,
    muted_ms=T.DoubleType,
)
BUCKET = ("cluster", "source", "quota_key", "user", "client_id", "broker_id")


def read_history(
    spark: SparkSession, clickhouse: ClickHouse, slices: Sequence[Mapping[str, Any]], *, assigned: bool = False
) -> DataFrame:
    """Rows of HISTORY_SCHEMA over the slices, one per five minutes. `assigned`: of the buckets that the run assigned,
    whatever quotas were in force."""
    return read_slices(spark, clickhouse, partial(history, assigned=assigned), HISTORY_SCHEMA, slices)


def prepared(spark: SparkSession, clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> list[dict[str, Any]]:
    """Brings usage_1m up to date, resolves limits and divides the range into slices.

    Returns the query parameters of each slice. Raises NothingToReadError, StoreError."""
    hours = stored_hours(clickhouse, options, job_run)
    return limited_slices(spark, clickhouse, hours, Run.of(job_run, hours.when), job_run)


def stored_hours(clickhouse: ClickHouse, options: JobOptions, job_run: JobRun) -> CountedRange:
    """The range on the grid of steps, with usage_1m up to date. Raises NothingToReadError, StoreError."""
    when = _of_whole_minutes(options.when)
    job_run.begin("updating usage_1m")
    hours = stored_counts(clickhouse, when, options.source, options.cluster)
    job_run.rows_in = sum(count["samples"] for count in hours.counts)
    if not hours.counts:
        raise NothingToReadError(f"there is no usage of source {options.source} in this time")
    return hours


def _of_whole_minutes(when: TimeRange) -> TimeRange:
    """The range on the grid of steps. It ends with the last minute that is over: what a minute of usage_1m has sent
    cannot be divided, and would be the usage of the seconds before an end within it."""
    from_ms = when.from_ms - when.from_ms % (STEP_S * 1000)
    return TimeRange(from_ms, max(when.to_ms - when.to_ms % _MINUTE_MS, from_ms + _MINUTE_MS), STEP_S)


def limited_slices(
    spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, run_of: Run, job_run: JobRun
) -> list[dict[str, Any]]:
    """The slices of the range, with the limits resolved that rows lack. Raises StoreError."""
    job_run.begin("resolving the limits of clients")
    resolve_limits(spark, clickhouse, run_of)
    return slices_of_run(spark, clickhouse, hours, run_of)


def slices_of_run(
    spark: SparkSession, clickhouse: ClickHouse, hours: CountedRange, run_of: Run
) -> list[dict[str, Any]]:
    """The query parameters of each slice. Raises StoreError."""
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    return list(slices_of(clickhouse, hours, spark.sparkContext.defaultParallelism, of_run))


def history(*, divided: bool, assigned: bool = False) -> str:
    """Parameters: those of the usage query."""
    # The row of a bucket's busiest member has the figures of the whole bucket.
    return f"""
SELECT cluster, source, quota_key, bucket_user AS user, bucket_client_id AS client_id, broker_id,
       intDiv(window_start_ms, {STEP_S * 1000}) AS step, limit, matched_entity, group_usage / limit AS mean,
       group_p95 / limit AS p95, muted_ms
FROM view({WindowsQuery(STEP_S, Samples.MINUTES, divided, assigned).usage()})
WHERE usage_rank = 1 AND state = 'limited' AND limit > 0
{SETTINGS}
"""  # noqa: S608 - made of our own words
