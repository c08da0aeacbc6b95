"""Publishes a run's staged rows to quota_utilization: readers see all of the run's rows or none.

Executors write to quota_utilization_staging. INSERT SELECTs of about PIECE_ROWS rows, each of whole windows, publish
the rows of the run, together with a tombstone for each row of an earlier run that has no input any more; the commit
marker of each window is written last. An incomplete window never replaces a complete one. Each step has a deduplication
token of the run, so it may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.queries import UTILIZATION_SCHEMA
from spark_jobs.time_range import TimeRange

STAGING = "quota_utilization_staging"
CLIENT_LIMITS = "quota_client_limits"

_COLUMNS = ", ".join(f"`{name}`" for name in UTILIZATION_SCHEMA.fieldNames())
# UNION ALL requires equal types: staging stores levels as text.
_TOMBSTONE = _COLUMNS.replace("`level`", "toString(level)").replace("`instant_level`", "toString(instant_level)")
PIECE_ROWS = 200_000  # takes ClickHouse about 400 MiB to publish
_KEY = "cluster, source, quota_key, window_s, window_start, user, client_id"
_OF_RUN = "run = {run:String}"
_OF_RANGE = (
    "source = {source:String} AND window_s = {window_s:UInt32}"
    " AND window_start >= toDateTime({from_s:Int64}) AND window_start < toDateTime({to_s:Int64})"
    " AND ({cluster:String} = '' OR cluster = {cluster:String})"
)
_COMPLETE_BEFORE = f"""(tuple(cluster, window_start) IN (
    SELECT cluster, window_start FROM headroom.quota_utilization_windows FINAL WHERE {_OF_RANGE} AND complete = 1
))"""  # noqa: S608 - made of our own words
_OF_PIECE = "window_start >= toDateTime({first_s:Int64}) AND window_start < toDateTime({until_s:Int64})"
_ENDED = "window_start + window_s <= toDateTime({to_s:Int64})"

_STAGED = f"""
SELECT toInt64(toUnixTimestamp(window_start)) AS start_s, count() AS rows
FROM headroom.{STAGING} WHERE {_OF_RUN} GROUP BY start_s ORDER BY start_s"""  # noqa: S608 - made of our own words

_PUBLISH = f"""
INSERT INTO headroom.quota_utilization ({_COLUMNS}, run_id, run_version, is_deleted)
SELECT {_COLUMNS}, toUUID({{run:String}}), {{version:UInt64}}, 0
FROM headroom.{STAGING}
WHERE {_OF_RUN} AND {_OF_PIECE} AND (complete = 1 OR NOT {_COMPLETE_BEFORE})
UNION ALL
SELECT {_TOMBSTONE}, toUUID({{run:String}}), {{version:UInt64}}, 1
FROM headroom.quota_utilization AS before FINAL
WHERE {_OF_RANGE} AND {_OF_PIECE} AND ({_ENDED} OR NOT {_COMPLETE_BEFORE})
  AND tuple({_KEY}) NOT IN (SELECT {_KEY} FROM headroom.{STAGING} WHERE {_OF_RUN} AND {_OF_PIECE})
SETTINGS max_insert_threads = 1, max_threads = 1, min_insert_block_size_rows = 1000000,
         min_insert_block_size_bytes = 0"""  # noqa: S608 - made of our own words

_COMMIT = f"""
INSERT INTO headroom.quota_utilization_windows
    (cluster, source, window_s, window_start, complete, rows, run_id, run_version)
SELECT cluster, source, window_s, window_start, max(complete), sum(rows), toUUID({{run:String}}), {{version:UInt64}}
FROM (
    SELECT cluster, source, window_s, window_start, complete, 1 AS rows FROM headroom.{STAGING} WHERE {_OF_RUN}
    UNION ALL
    SELECT cluster, source, window_s, window_start, {_ENDED}, 0 AS rows
    FROM headroom.quota_utilization_windows FINAL WHERE {_OF_RANGE}
)
WHERE complete = 1 OR NOT {_COMPLETE_BEFORE}
GROUP BY cluster, source, window_s, window_start"""  # noqa: S608 - made of our own words

# Both tables are partitioned by run.
_CLEAR = "ALTER TABLE headroom.{table} DROP PARTITION {{run:String}}"


class Run(NamedTuple):
    """Identity and scope of a run. A run with a higher `version` replaces the rows of earlier runs."""

    id: UUID
    version: int
    source: str
    cluster: str  # '': all
    when: TimeRange

    @property
    def parameters(self) -> dict[str, Any]:
        """Query parameters of the statements in this file."""
        return {
            "run": str(self.id),
            "version": self.version,
            "source": self.source,
            "cluster": self.cluster,
            "window_s": self.when.window_s,
            "from_s": self.when.from_ms // 1000,
            "to_s": self.when.to_ms // 1000,
        }


def publish(clickhouse: ClickHouse, run: Run) -> None:
    """Publishes the staged rows of the run, then commits their windows. Raises SourceError."""
    windows = clickhouse.rows(_STAGED, run.parameters)
    starts = piece_starts((row["start_s"], row["rows"]) for row in windows)
    for first_s, until_s in pairwise([run.when.from_ms // 1000, *starts, -(-run.when.to_ms // 1000)]):
        piece = {**run.parameters, "first_s": first_s, "until_s": until_s}
        clickhouse.command(_PUBLISH, piece, token=f"{run.id}/publish/{first_s}")
    clickhouse.command(_COMMIT, run.parameters, token=f"{run.id}/commit")


def piece_starts(windows: Iterable[tuple[int, int]]) -> list[int]:
    """Starts of the second and later pieces of PIECE_ROWS rows, from (start, rows) of windows ordered by start."""
    starts: list[int] = []
    rows = 0
    for start_s, more in windows:
        if rows and rows + more > PIECE_ROWS:
            starts.append(start_s)
            rows = 0
        rows += more
    return starts


def clear(clickhouse: ClickHouse, run: Run) -> None:
    """Removes the run's staged rows. Rows on other shards of a cluster expire after a day (TTL).

    Raises SourceError.
    """
    for table in (STAGING, CLIENT_LIMITS):
        clickhouse.command(_CLEAR.format(table=clickhouse.stored(table)), run.parameters)
