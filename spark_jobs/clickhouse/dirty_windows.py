"""Streaming source of quota-headroom --stream: windows that received new input. The offset is `received_at`.

It yields the windows to recompute, not their rows: windows are always computed completely, so repeating a batch after a
restart changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.client import ClickHouse

SCHEMA = "start_ms long, samples long"

# An insert in progress may become visible after rows received later, so the newest second is left for later.
_NEWEST = f"""
SELECT toUnixTimestamp64Milli(min(received_at)) AS first_ms, toUnixTimestamp64Milli(max(received_at)) + 1 AS next_ms
FROM headroom.quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND {queries.OF_SOURCE}
  AND received_at < now64(3) - INTERVAL 1 SECOND
"""  # noqa: S608 - made of our own words
_BETWEEN = f"""
SELECT intDiv(toUnixTimestamp64Milli(ts), {{window_ms:Int64}}) * {{window_ms:Int64}} AS start_ms, count() AS samples
FROM headroom.quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND {queries.OF_SOURCE}
  AND received_at >= fromUnixTimestamp64Milli({{after_ms:Int64}})
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
    options = {"url": clickhouse.url, "password": clickhouse.password, "asked": json.dumps(asked)}
    return spark.readStream.format(DirtyWindows.name()).options(**options).load()


class DirtyWindows(DataSource):
    """Options: url, password, asked (JSON: source, cluster, window_ms, from_ms)."""

    @classmethod
    def name(cls) -> str:
        return "headroom-dirty-windows"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DirtyWindowsReader:
        clickhouse = ClickHouse(self.options["url"], self.options["password"])
        return DirtyWindowsReader(clickhouse, json.loads(self.options["asked"]))


class DirtyWindowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"received_ms": ...}`; a batch covers rows received in [start, end)."""

    def __init__(self, clickhouse: ClickHouse, asked: dict[str, object]) -> None:
        self._clickhouse = clickhouse
        self._asked = asked
        self._target_ms: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """The offset before the first row of the range. Raises SourceError."""
        return {"received_ms": max(self._newest()["first_ms"], 0)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the final offset of a query with an availableNow trigger. Raises SourceError."""
        self._target_ms = self._newest()["next_ms"]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The offset after the newest row, without the newest second. Raises SourceError."""
        newest_ms = self._newest()["next_ms"] if self._target_ms is None else self._target_ms
        return {"received_ms": max(newest_ms, start["received_ms"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition, thus one query, per batch."""
        return [InputPartition({"after_ms": start["received_ms"], "until_ms": end["received_ms"]})]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """Raises SourceError."""
        for row in self._clickhouse.rows(_BETWEEN, {**self._asked, **partition.value}):
            yield row["start_ms"], row["samples"]

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: the checkpoint stores the offset."""

    def _newest(self) -> dict[str, int]:
        (row,) = self._clickhouse.rows(_NEWEST, self._asked)
        return row
