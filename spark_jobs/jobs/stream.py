"""quota-headroom --stream: runs the same job over windows as their input arrives.

Structured Streaming keeps the offset, a `received_at`, in the checkpoint. Its source yields the windows that received
input, not their rows: each batch runs the job over these windows and those that they change, which are always computed
completely. A batch that is
repeated after a restart publishes the same rows under a later version, so no row is lost or duplicated.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from exporters.clickhouse.client import ClickHouse
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.source import NothingToReadError, clickhouse_of, source_errors
from spark_jobs.options import HeadroomOptions
from spark_jobs.session import session
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange, affected
from spark_jobs.transforms.utilization import LOOKBACK_WINDOWS

Job = Callable[[HeadroomOptions], list[dict[str, Any]]]


def run(options: HeadroomOptions, checkpoint: Path, job: Job, *, tick_s: int = 10) -> list[dict[str, Any]]:
    """Runs `job` over windows that receive input, until stopped, or with `options.once` until all present input is
    processed. Returns the last report.

    Raises ValueError, JavaError, StoreError.
    """
    clickhouse = clickhouse_of(options.url, options.password)
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


def _batch(options: HeadroomOptions, job: Job, report: list[dict[str, Any]]) -> Callable[[DataFrame, int], None]:
    def compute(windows: DataFrame, _epoch: int) -> None:
        starts = [row["start_ms"] for row in windows.select("start_ms").distinct().orderBy("start_ms").collect()]
        for when in changed(starts, options.when.window_s, time.time_ns() // 1_000_000):
            with contextlib.suppress(NothingToReadError):
                report[:] = job(replace(options, when=when, recent=False, stream=False, once=False, checkpoint=None))

    return compute


def changed(starts: Sequence[int], window_s: int, now_ms: int) -> list[TimeRange]:
    """The ranges that input of the windows `starts` (ascending) changes: these windows and those after them that
    throttle times, hysteresis and trend reach, but not what lies between an old window and a new one."""
    if not starts:
        return []
    newest, window_ms = starts[-1], window_s * 1000
    reach_ms = THROTTLE_LOOKBACK_MS + LOOKBACK_WINDOWS * window_ms
    # The current window is computed up to now, and again when more of its input arrives.
    until_ms = min(newest + window_ms + reach_ms, now_ms) if newest < now_ms else newest + window_ms
    when = TimeRange(newest, until_ms, window_s)
    return affected((start for start in starts if start < newest), when, reach_ms)


SCHEMA = "start_ms long, samples long"

# An insert in progress may become visible after rows received later: a batch looks again at what was received in the
# minute before it, and leaves the newest second for later.
_IN_PROGRESS_MS = 60_000
_NEWEST = f"""
SELECT toUnixTimestamp64Milli(min(received_at)) AS first_ms, toUnixTimestamp64Milli(max(received_at)) + 1 AS next_ms
FROM quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND {queries.OF_SOURCE}
  AND received_at < now64(3) - INTERVAL 1 SECOND
"""  # noqa: S608 - made of our own words
_BETWEEN = f"""
SELECT intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) * {{window_ms:Int64}} AS start_ms, count() AS samples
FROM quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND {queries.OF_SOURCE}
  AND received_at >= fromUnixTimestamp64Milli({{after_ms:Int64}} - {_IN_PROGRESS_MS})
  AND received_at < fromUnixTimestamp64Milli({{until_ms:Int64}})
GROUP BY start_ms
ORDER BY start_ms
"""  # noqa: S608 - made of our own words


def dirty_windows(
    spark: SparkSession, clickhouse: ClickHouse, *, source: str, cluster: str, window_ms: int, from_ms: int
) -> DataFrame:
    """A streaming DataFrame (SCHEMA) of the windows from `from_ms` on that receive input."""
    spark.dataSource.register(DirtyWindows)
    asked = {"source": source, "cluster": cluster, "window_ms": window_ms, "from_ms": from_ms}
    options = {"url": clickhouse.current.url, "password": clickhouse.current.password, "asked": json.dumps(asked)}
    return spark.readStream.format(DirtyWindows.name()).options(**options).load()


class DirtyWindows(DataSource):
    """Options: url, password, asked (JSON: source, cluster, window_ms, from_ms)."""

    @classmethod
    def name(cls) -> str:
        return "headroom-dirty-windows"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DirtyWindowsReader:
        clickhouse = clickhouse_of(self.options["url"], self.options["password"])
        return DirtyWindowsReader(clickhouse, json.loads(self.options["asked"]))


class DirtyWindowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"received_ms": ...}`; a batch covers rows received in [start, end), and those of the minute before
    again."""

    def __init__(self, clickhouse: ClickHouse, asked: dict[str, object]) -> None:
        self._clickhouse = clickhouse
        self._asked = asked
        self._target_ms: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """The offset before the first row of the range. Raises StoreError."""
        return {"received_ms": max(self._newest()["first_ms"], 0)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the final offset of a query with an availableNow trigger. Raises StoreError."""
        self._target_ms = self._newest()["next_ms"]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The offset after the newest row, without the newest second. Raises StoreError."""
        newest_ms = self._newest()["next_ms"] if self._target_ms is None else self._target_ms
        return {"received_ms": max(newest_ms, start["received_ms"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition, thus one query, per batch."""
        return [InputPartition({"after_ms": start["received_ms"], "until_ms": end["received_ms"]})]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """Raises StoreError."""
        for row in self._clickhouse.rows(_BETWEEN, {**self._asked, **partition.value}):
            yield row["start_ms"], row["samples"]

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: the checkpoint stores the offset."""

    def _newest(self) -> dict[str, int]:
        (row,) = self._clickhouse.rows(_NEWEST, self._asked)
        return row
