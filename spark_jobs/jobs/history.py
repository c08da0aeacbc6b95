"""Steps shared by the jobs over weeks: update the rollup, resolve limits, read the history of buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.clickhouse import publication, queries
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.errors import NothingToReadError
from spark_jobs.clickhouse.history_query import HISTORY_SCHEMA, STEP_S, history
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.source import read, read_divided, write
from spark_jobs.job_runs import JobRun
from spark_jobs.jobs.usage_windows import slices_of, stored_counts
from spark_jobs.options import Options
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.quota_precedence import client_limits


def read_history(spark: SparkSession, clickhouse: ClickHouse, slices: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows of HISTORY_SCHEMA over the slices, one per five minutes."""
    return read_divided(spark, clickhouse, history, HISTORY_SCHEMA, slices)


def prepared(spark: SparkSession, clickhouse: ClickHouse, options: Options, job_run: JobRun) -> list[dict[str, Any]]:
    """Brings usage_1m up to date, resolves limits and divides the range into slices.

    Returns the query parameters of each slice. Raises NothingToReadError, SourceError."""
    when = TimeRange(options.when.from_ms - options.when.from_ms % (STEP_S * 1000), options.when.to_ms, STEP_S)
    part = stored_counts(clickhouse, when, options.source, options.cluster)
    job_run.rows_in = sum(count["samples"] for count in part.counts)
    if not part.counts:
        raise NothingToReadError(f"there is no usage of source {options.source} in this time")
    run_of = Run(job_run.id, job_run.version, options.source, options.cluster, when)
    resolve_limits(spark, clickhouse, run_of)
    of_run = {"source": options.source, "run": str(run_of.id)}
    return list(slices_of(clickhouse, part, spark.sparkContext.defaultParallelism, of_run))


def resolve_limits(spark: SparkSession, clickhouse: ClickHouse, run_of: Run) -> None:
    """Writes the limits of all clients to quota_client_limits, which the usage query joins."""
    when = run_of.when
    bounds = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": run_of.source, "cluster": run_of.cluster}
    clients = read(spark, clickhouse, queries.CLIENTS, queries.CLIENTS_SCHEMA, [bounds])
    history = read(spark, clickhouse, queries.LIMITS, queries.LIMITS_SCHEMA, [bounds])
    stage(client_limits(clients, history, when.from_ms, when.to_ms), clickhouse, publication.CLIENT_LIMITS, run_of)


def stage(rows: DataFrame, clickhouse: ClickHouse, table: str, run_of: Run) -> int:
    """Writes rows of the run and returns how many. Rows are sorted within a partition so that a retried task produces
    the same blocks."""
    cores = max(rows.sparkSession.sparkContext.defaultParallelism, 1)
    few = rows.withColumn("run", F.lit(str(run_of.id))).coalesce(cores)
    order = ("window_start", "client_id", "cluster", "quota_key", "user", "from_ms")
    in_order = few.sortWithinPartitions(*(name for name in order if name in rows.columns))
    return write(in_order, clickhouse, table, token=f"{run_of.id}/{table}")
