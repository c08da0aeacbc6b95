"""The job: which client is throttled or near its quota. Reads ClickHouse, writes quota_utilization and job_runs.

`headroom job quota-headroom` runs it in-process, `spark-submit spark_jobs/jobs/quota_headroom.py` on a cluster.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_jobs import cli
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.client import ClickHouse, SourceError
from spark_jobs.clickhouse.source import read, write
from spark_jobs.job_runs import JobRun
from spark_jobs.reports import headroom_report
from spark_jobs.session import session
from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.severity import Thresholds
from spark_jobs.transforms.utilization import Inputs, Run, utilization

NAME = "quota_headroom"


def run(
    url: str,
    when: TimeRange,
    *,
    password: str = "",
    thresholds: Thresholds = Thresholds(),
    source: str = "gateway",
) -> list[dict[str, Any]]:
    """Runs the job and returns the report: per client and quota key its latest whole window, worst first.

    `url` is the SQL door or a ClickHouse server, `source` the source of usage to go by. All windows are written; a
    run over the same windows replaces them. Raises ValueError (url, source), JavaError, SourceError.
    """
    if source not in queries.USAGE_SOURCES:
        raise ValueError(f"no source of usage is named {source!r}: there are {', '.join(queries.USAGE_SOURCES)}")
    clickhouse = ClickHouse(url, password)
    run_id = uuid.uuid4()
    with JobRun(clickhouse, NAME, run_id, version=time.time_ns(), when=when) as job_run, session(NAME) as spark:
        try:
            inputs = _read(spark, clickhouse, when, source)
            rows = utilization(inputs, when, thresholds, Run(run_id.bytes, job_run.version)).persist()
            job_run.rows_in = inputs.usage.count()
            job_run.rows_out = rows.count()
            in_order = rows.sortWithinPartitions("cluster", "quota_key", "window_start", "user", "client_id")
            write(in_order, clickhouse, queries.UTILIZATION, token=str(run_id))
            latest = headroom_report.worst_first(latest_windows(rows, when).toArrow().to_pylist())
        except (PySparkException, Py4JError) as exc:
            unavailable = _unavailable(exc)
            if unavailable is None:
                raise
            raise unavailable from exc
        job_run.stats.update(Counter(row["level"] for row in latest))
    return latest


def latest_windows(rows: DataFrame, when: TimeRange) -> DataFrame:
    """Per client and quota key the latest whole window that has samples, else the latest that was cut short; beside it
    the throttling in all windows."""
    whole = F.unix_millis("window_start") + when.window_ms <= when.to_ms
    of_client = Window.partitionBy("cluster", "quota_key", "user", "client_id")
    newest = of_client.orderBy(F.col("whole").desc(), F.col("window_start").desc())
    throttled_start = F.when(F.col("throttle_ms_max") > 0, F.col("window_start"))
    ranked = rows.withColumn("whole", whole).withColumns(
        {
            "age": F.row_number().over(newest),
            "range_throttle_ms": F.max("throttle_ms_max").over(of_client),
            "range_throttled_s": F.sum("throttled_s").over(of_client),
            "last_throttled": F.max(throttled_start).over(of_client),
            "throttle_ms": F.col("throttle_ms_max"),
            "headroom": F.col("limit") - F.col("group_usage"),
        }
    )
    return ranked.where(F.col("age") == 1).select(*headroom_report.COLUMNS.names)


def _read(spark: SparkSession, clickhouse: ClickHouse, when: TimeRange, source: str) -> Inputs:
    """The four inputs, aggregated to windows by ClickHouse; the big two in slices of time."""
    tiles = {"from_ms": when.from_ms, "window_ms": when.window_ms}
    per_slice = [{**tiles, **bounds} for bounds in when.slices()]
    of_source = [{**parameters, "source": source} for parameters in per_slice]
    seen = {"to_ms": when.to_ms, "seen_from_ms": when.from_ms - queries.INSTANCE_LOOKBACK_S * 1000}
    return Inputs(
        usage=read(spark, clickhouse, queries.USAGE, queries.USAGE_SCHEMA, of_source).persist(),
        limits=read(spark, clickhouse, queries.LIMITS, queries.LIMITS_SCHEMA, [{"to_ms": when.to_ms}]),
        telemetry=read(spark, clickhouse, queries.TELEMETRY, queries.TELEMETRY_SCHEMA, per_slice),
        instances=read(spark, clickhouse, queries.INSTANCES, queries.INSTANCES_SCHEMA, [seen]),
    )


def _unavailable(exc: BaseException) -> SourceError | None:
    """What a worker raised, found again in the text of Spark's exception."""
    match = re.search(rf"{SourceError.__name__}: (.+)", str(exc))
    return SourceError(match[1].strip()) if match else None


if __name__ == "__main__":
    cli.main(run)
