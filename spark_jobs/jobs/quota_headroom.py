"""Finds clients that are throttled or near their quota. Reads ClickHouse, writes quota_utilization and job_runs.

`headroom job quota-headroom` runs it in this process, `spark-submit spark_jobs/jobs/quota_headroom.py` on a cluster.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import cli
from spark_jobs.clickhouse import publication, queries
from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.errors import NothingToReadError, source_errors
from spark_jobs.clickhouse.publication import Run
from spark_jobs.clickhouse.slices import Count, slices, step_ms
from spark_jobs.clickhouse.source import read
from spark_jobs.clickhouse.usage_query import usage
from spark_jobs.job_runs import JobRun
from spark_jobs.jobs import stream
from spark_jobs.jobs.history import resolve_limits, stage
from spark_jobs.options import Options
from spark_jobs.progress import progress
from spark_jobs.reports import headroom_report
from spark_jobs.session import session
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange
from spark_jobs.transforms import hysteresis
from spark_jobs.transforms.utilization import Inputs, utilization

NAME = "quota_headroom"

LATENESS_MS = 86_400_000  # how far back the job looks for windows with late rows
WATERMARK_MARGIN_MS = 60_000  # an insert in progress may become visible after rows received later


def run(options: Options) -> list[dict[str, Any]]:
    """Runs the job and returns the report: the latest complete window per client and quota key, worst first.

    All windows of the range are written; a later run over the same windows replaces them. A run whose range ends now
    also recomputes earlier windows that received input since the last run.

    Raises ValueError (url, source), JavaError, SourceError.
    """
    if options.source not in queries.USAGE_SOURCES:
        names = ", ".join(queries.USAGE_SOURCES)
        raise ValueError(f"no source of usage is named {options.source!r}: there are {names}")
    if options.checkpoint is not None:
        return stream.run(options, options.checkpoint, run)
    clickhouse = ClickHouse(options.url, options.password)
    job_run = JobRun(clickhouse, NAME, version=time.time_ns(), when=options.when, source=options.source)
    with job_run, source_errors():
        when = _with_late_windows(clickhouse, job_run, options)
        counts = _counts(clickhouse, options, when)
        inside = [count for count in counts if count["start_ms"] + step_ms(when) > when.from_ms]
        job_run.rows_in = sum(count["samples"] for count in inside)
        job_run.rows_bad = sum(count["bad"] for count in inside)
        if not job_run.rows_in:
            raise NothingToReadError(f"there is no usage of source {options.source} in this time")
        with session(NAME, options.master) as spark, progress(NAME, spark.sparkContext):
            run_of = Run(job_run.id, job_run.version, options.source, options.cluster, when)
            rows = _computed(spark, clickhouse, options, run_of, counts)
            job_run.rows_out = stage(rows, clickhouse, publication.STAGING, run_of)
        publication.publish(clickhouse, run_of)
        found = publication.latest(clickhouse, run_of, options.when.from_ms, headroom_report.COLUMNS)
        latest = headroom_report.worst_first(found)
        publication.clear(clickhouse, run_of)
        job_run.stats.update(Counter(row["level"] for row in latest))
    return options.chosen(latest)


def _with_late_windows(clickhouse: ClickHouse, job_run: JobRun, options: Options) -> TimeRange:
    """The range, extended back to the earliest window that received input since the last run."""
    watermark_ms, now_ms = job_run.last_watermark()
    if not options.recent:
        return options.when
    job_run.watermark_ms = now_ms - WATERMARK_MARGIN_MS
    if not watermark_ms:
        return options.when
    parameters = {
        "from_ms": max(options.when.from_ms - LATENESS_MS, 0),
        "to_ms": options.when.from_ms,
        "window_ms": options.when.window_ms,
        "watermark_ms": watermark_ms,
        "source": options.source,
        "cluster": options.cluster,
    }
    late = clickhouse.rows(queries.LATE_WINDOWS, parameters)
    job_run.rows_late = sum(row["samples"] for row in late)
    limits = [row for row in clickhouse.rows(queries.LATE_LIMITS, parameters) if row["changes"]]
    starts = [row["start_ms"] for row in late + limits]
    return options.when.earlier(max(min(starts), parameters["from_ms"])) if starts else options.when


def _counts(clickhouse: ClickHouse, options: Options, when: TimeRange) -> list[dict[str, Any]]:
    """Counts rows of quota_usage by time, cluster and quota key, including rows before the range that hysteresis needs
    or whose throttle times may extend into it."""
    parameters = {
        "from_ms": max(_memory_from_ms(when) - THROTTLE_LOOKBACK_MS, 0),
        "to_ms": when.to_ms,
        "step_ms": step_ms(when),
        "source": options.source,
        "cluster": options.cluster,
    }
    return clickhouse.rows(queries.COUNTS, parameters)


def _memory_from_ms(when: TimeRange) -> int:
    return max(when.from_ms - hysteresis.LOOKBACK_WINDOWS * when.window_ms, 0)


def _computed(
    spark: SparkSession, clickhouse: ClickHouse, options: Options, run_of: Run, counts: list[dict[str, Any]]
) -> DataFrame:
    """Computes rows of quota_utilization."""
    memory = run_of.when.earlier(_memory_from_ms(run_of.when))
    if any(count["unresolved"] for count in counts):
        resolve_limits(spark, clickhouse, run_of._replace(when=memory))
    inputs = _inputs(spark, clickhouse, run_of, memory, counts)
    return utilization(inputs, run_of.when, options.thresholds)


def _inputs(
    spark: SparkSession, clickhouse: ClickHouse, run_of: Run, memory: TimeRange, counts: list[dict[str, Any]]
) -> Inputs:
    """Reads the three inputs, aggregated to windows by ClickHouse; usage is read in slices."""
    when, cores = run_of.when, spark.sparkContext.defaultParallelism
    found = [Count(row["cluster"], row["quota_key"], row["start_ms"], row["samples"]) for row in counts]
    of_run = {"source": run_of.source, "run": str(run_of.id)}
    per_slice = [{**piece, **of_run} for piece in slices(found, memory, cores)]
    window = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms, "cluster": run_of.cluster}
    seen = {"to_ms": when.to_ms, "seen_from_ms": when.from_ms - queries.INSTANCE_LOOKBACK_S * 1000}
    return Inputs(
        usage=read(spark, clickhouse, usage(when.window_s), queries.USAGE_SCHEMA, per_slice),
        telemetry=read(spark, clickhouse, queries.TELEMETRY, queries.TELEMETRY_SCHEMA, [window]),
        instances=read(
            spark, clickhouse, queries.INSTANCES, queries.INSTANCES_SCHEMA, [{**seen, "cluster": run_of.cluster}]
        ),
    )


if __name__ == "__main__":
    cli.main("quota-headroom", run)
