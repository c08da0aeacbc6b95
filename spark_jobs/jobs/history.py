"""Steps shared by the jobs over weeks: update the rollup, resolve limits, read the history of buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.clickhouse import publication, queries, rollup
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.errors import NothingToReadError
from spark_jobs.clickhouse.history_query import HISTORY, HISTORY_SCHEMA
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.source import read, write
from spark_jobs.job_runs import JobRun
from spark_jobs.options import Options
from spark_jobs.transforms.quota_precedence import client_limits

_SLICE_MS = 86_400_000

_KEYS = """
SELECT cluster, quota_key, sum(samples) AS rows FROM headroom.usage_1m
WHERE source = {source:String} AND window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
  AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000)) AND ({cluster:String} = '' OR cluster = {cluster:String})
GROUP BY cluster, quota_key ORDER BY cluster, quota_key"""


def read_history(spark: SparkSession, clickhouse: ClickHouse, slices: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows of HISTORY_SCHEMA over the slices, one per five minutes."""
    return read(spark, clickhouse, HISTORY, HISTORY_SCHEMA, slices)


def prepared(spark: SparkSession, clickhouse: ClickHouse, options: Options, job_run: JobRun) -> list[dict[str, Any]]:
    """Brings usage_1m up to date, resolves limits and divides the range into slices of a cluster, quota key and day.

    Returns the query parameters of each slice. Raises NothingToReadError, SourceError."""
    when = options.when
    rollup.refresh(clickhouse, options.source, when.from_ms, when.to_ms)
    bounds = {"from_ms": when.from_ms, "to_ms": when.to_ms, "source": options.source, "cluster": options.cluster}
    keys = clickhouse.rows(_KEYS, bounds)
    job_run.rows_in = sum(key["rows"] for key in keys)
    if not keys:
        raise NothingToReadError(f"there is no usage of source {options.source} in this time")
    run_of = Run(job_run.id, job_run.version, options.source, options.cluster, when)
    resolve_limits(spark, clickhouse, run_of)
    return [
        {
            "cluster": key["cluster"],
            "quota_key": key["quota_key"],
            "source": options.source,
            "from_ms": start,
            "to_ms": min(start + _SLICE_MS, when.to_ms),
            "window_ms": 300_000,
            "run": str(run_of.id),
        }
        for key in keys
        for start in range(when.from_ms, when.to_ms, _SLICE_MS)
    ]


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
