"""Finds clients that are throttled or near their quota. Reads ClickHouse, writes quota_utilization and job_runs.

`headroom job quota-headroom` runs it in this process, `spark-submit spark_jobs/jobs/quota_headroom.py` on a cluster.
"""

import contextlib
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.records import statement
from quota_metrics.minutes.surroundings import TELEMETRY_PARAMETERS
from quota_metrics.verdict.changes import LONGEST_SILENCE_MS
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, MUTED_LOOKBACK_MS, Thresholds, thresholds_in_force
from spark_jobs import cli
from spark_jobs.clickhouse import queries, worst_clients
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.clickhouse.source import NothingToReadError, clickhouse_of, read, source_errors, stage
from spark_jobs.jobs.usage_windows import CountedRange, count_minutes, limits_of, read_usage
from spark_jobs.options import HeadroomOptions
from spark_jobs.reports import headroom_report
from spark_jobs.session import plan_for_many_rows, progress, session
from spark_jobs.time_range import DAY_MS, TimeRange, affected
from spark_jobs.transforms.verdicts import INSTANCE_LOOKBACK_MS, LOOKBACK_WINDOWS, Fold, correlated

NAME = "quota_headroom"

LATENESS_MS = DAY_MS  # how far back the job looks for windows with late rows
# Samples; Spark itself sees their windows, about one in sixty.
MANY_ROWS, LONG_JOB_ROWS = 500_000, 50_000_000
_COMPLETE_AFTER_S: Final = 5.0  # by then the rows of a window are stored
WATERMARK_MARGIN_MS = 60_000  # an insert in progress may become visible after rows received later


class LevelReport(NamedTuple):
    """The latest complete window per client and quota key, worst first, of at most `options.most` clients; and
    the levels of all that the options name, for `options.fail_on`."""

    rows: list[dict[str, Any]]
    levels: Collection[str] = ()


def run(options: HeadroomOptions, version: int = 0) -> LevelReport:
    """Runs the job and returns its report.

    All windows of the range are written; a later run over the same windows replaces them. A run whose range ends now
    also recomputes earlier windows that received input since the last run, each range of them by a run with its
    `version`.

    Raises ValueError (url), JavaError, StoreError.
    """
    if options.stream:
        return stream(options)
    clickhouse = clickhouse_of(options.url, options.password)
    job_run = JobRun(clickhouse, NAME, options, version)
    with job_run, source_errors():
        job_run.begin("looking for late rows")
        *late, when = _affected(clickhouse, job_run, options)
        job_run.computed = when
        memory = when.earlier(when.from_ms - LOOKBACK_WINDOWS * when.window_ms)
        job_run.begin("counting samples")
        counted = count_minutes(clickhouse, memory, options.source, options.cluster)
        job_run.rows_bad = counted.bad
        job_run.rows_in = counted.samples_since(when.from_ms) + counted.bad
        if not job_run.rows_in and not late:
            raise NothingToReadError(f"there is no usage of source {options.source} in this time")
        with session(NAME, options.master, long=job_run.rows_in >= LONG_JOB_ROWS) as spark:
            for earlier in late:
                run(replace(options, when=earlier, recent=False), job_run.version)
            if not job_run.rows_in:
                return LevelReport([])
            if job_run.rows_in >= MANY_ROWS:
                plan_for_many_rows(spark)
            with progress(NAME, spark.sparkContext):
                job_run.begin("computing and staging windows")
                thresholds = options.thresholds(thresholds_in_force(clickhouse.rows(statement("thresholds"))))
                job_run.rows_out = _stage(spark, clickhouse, thresholds, job_run, counted)
        job_run.begin("publishing windows")
        job_run.publish(job_run.rows_out)
        levels = worst_clients.levels(clickhouse, job_run)
        job_run.stats.update(levels)
        if options.fail_on and (options.user or options.client_id):
            levels = worst_clients.levels(clickhouse, job_run, options.user, options.client_id)
        rows = worst_clients.worst(clickhouse, job_run, headroom_report.COLUMNS, options)
        if not options.top and len(rows) == options.most:
            sys.stderr.write(f"headroom: these are the {len(rows)} worst clients; quota_utilization has all\n")
        job_run.clear()
    return LevelReport(rows, levels)


def stream(options: HeadroomOptions) -> LevelReport:
    """Runs the job over windows that have ended or receive rows, until stopped, or once with `options.once`. Returns
    the last report.

    There is no checkpoint: a run publishes whole windows under a version, and its record in job_runs says up to when
    rows had arrived. A stream that was killed begins with the rows that arrived since then, so none is lost or counted
    twice. Raises ValueError, JavaError, StoreError.
    """
    report = LevelReport([])
    batch = replace(options, stream=False, once=False, recent=True)
    with source_errors(), session(NAME, options.master):
        while True:
            with contextlib.suppress(NothingToReadError):
                report = run(batch)
            if options.once:
                return report
            ended_ms = batch.when.to_ms
            window_ms = batch.when.window_ms
            due_s = (ended_ms + window_ms) / 1000 + _COMPLETE_AFTER_S
            time.sleep(max(due_s - time.time(), 0.0))
            until_ms = int((time.time() - _COMPLETE_AFTER_S) * 1000)
            to_ms = until_ms - until_ms % window_ms
            # The window before may have been computed while it had not ended.
            batch = replace(batch, when=replace(batch.when, from_ms=ended_ms - ended_ms % window_ms, to_ms=to_ms))


def _affected(clickhouse: ClickHouse, job_run: JobRun, options: HeadroomOptions) -> list[TimeRange]:
    """The range, preceded by the ranges of earlier windows that change by input since the last run."""
    watermark_ms, now_ms = job_run.last_watermark()
    if not options.recent:
        return [options.when]
    job_run.watermark_ms = now_ms - WATERMARK_MARGIN_MS
    if not watermark_ms:
        return [options.when]
    first_ms = options.when.earlier(options.when.from_ms - LATENESS_MS).from_ms
    parameters = {
        "from_ms": first_ms,
        "to_ms": options.when.from_ms,
        "window_ms": options.when.window_ms,
        "watermark_ms": watermark_ms,
        "source": options.source,
        "cluster": options.cluster,
    }
    rows = clickhouse.rows(queries.LATE_WINDOWS, parameters)
    job_run.rows_late = sum(row["samples"] for row in rows)
    (limits,) = clickhouse.rows(queries.LATE_LIMITS, parameters)
    when = options.when.earlier(max(limits["start_ms"], first_ms)) if limits["changes"] else options.when
    starts = (row["start_ms"] for row in rows if row["start_ms"] < when.from_ms)
    return affected(starts, when, MUTED_LOOKBACK_MS + LOOKBACK_WINDOWS * when.window_ms)


def _stage(
    spark: SparkSession, clickhouse: ClickHouse, thresholds: Thresholds, job_run: JobRun, counted: CountedRange
) -> int:
    """Computes the windows of the run and stages them; returns their number. `counted`: also the windows before, which
    levels remember."""
    when = job_run.computed
    window = {"window_ms": when.window_ms, "offset_ms": 0, "cluster": counted.cluster, "telemetry": 1}
    span = {**window, **TELEMETRY_PARAMETERS, "from_ms": when.from_ms, "to_ms": when.to_ms, "source": counted.source}
    changes_ms = when.from_ms - (CAUSE_WINDOWS + 1) * when.window_ms
    seen_ms = min(changes_ms - LONGEST_SILENCE_MS, when.from_ms - INSTANCE_LOOKBACK_MS)

    def rows(query: str, schema: StructType, **more: int) -> DataFrame:
        return read(spark, clickhouse, query, schema, [{**span, **more}])

    joined = correlated(
        usage=read_usage(spark, clickhouse, counted, limits_of(clickhouse, counted)),
        telemetry=rows(statement("telemetry"), queries.TELEMETRY_SCHEMA),
        instances=rows(statement("instances"), queries.INSTANCES_SCHEMA, since_ms=0, seen_from_ms=seen_ms),
        byte_reports=rows(statement("byte_reports"), queries.BYTE_REPORTS_SCHEMA, since_ms=changes_ms),
        teams=rows(queries.TEAMS, queries.TEAMS_SCHEMA),
        observed=rows(queries.OBSERVED, queries.OBSERVED_SCHEMA, from_ms=counted.when.from_ms),
    )
    full_s = {row["cluster"]: row["full_s"] for row in clickhouse.rows(queries.FULL_WINDOWS)}
    fold = Fold(when, thresholds, str(job_run.id), full_s)
    return stage(joined, clickhouse, str(job_run.id), fold)


if __name__ == "__main__":
    cli.main("quota-headroom")
