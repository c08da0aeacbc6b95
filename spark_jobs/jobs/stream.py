"""quota-headroom --stream: runs the same job over windows as their input arrives.

Structured Streaming keeps the offset in the checkpoint; each batch runs the job over the windows it contains. A batch
that is repeated after a restart publishes the same rows under a later version, so no row is lost or duplicated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.dirty_windows import dirty_windows
from spark_jobs.clickhouse.errors import NothingToReadError, source_errors
from spark_jobs.options import Options
from spark_jobs.session import session
from spark_jobs.time_range import TimeRange

Job = Callable[[Options], list[dict[str, Any]]]


def run(options: Options, checkpoint: Path, job: Job, *, tick_s: int = 10) -> list[dict[str, Any]]:
    """Runs `job` over windows that receive input, until stopped, or with `options.once` until all present input is
    processed. Returns the last report.

    Raises ValueError, JavaError, SourceError.
    """
    clickhouse = ClickHouse(options.url, options.password)
    report: list[dict[str, Any]] = []
    with source_errors(), session("quota_headroom", options.master) as spark:
        windows = dirty_windows(
            spark,
            clickhouse,
            source=options.source,
            cluster=options.cluster,
            window_ms=options.when.window_ms,
            from_ms=options.when.from_ms,
        )
        writer = windows.writeStream.foreachBatch(_batch(options, job, report))
        writer = writer.option("checkpointLocation", str(checkpoint))
        trigger = (
            writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime=f"{tick_s} seconds")
        )
        query = trigger.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
    return report


def _batch(options: Options, job: Job, report: list[dict[str, Any]]) -> Callable[[DataFrame, int], None]:
    def compute(windows: DataFrame, _epoch: int) -> None:
        (bounds,) = windows.agg(F.min("start_ms").alias("first"), F.max("start_ms").alias("last")).collect()
        if bounds["first"] is None:
            return
        window_ms = options.when.window_ms
        now_ms = time.time_ns() // 1_000_000
        end_ms = bounds["last"] + window_ms
        # The current window is computed up to now, and again when more of its input arrives.
        to_ms = now_ms if bounds["last"] < now_ms < end_ms else end_ms
        when = TimeRange(bounds["first"], to_ms, options.when.window_s)
        try:
            report[:] = job(replace(options, when=when, recent=False, checkpoint=None))
        except NothingToReadError:
            return

    return compute
