"""Publishes a run's staged rows to quota_utilization: readers see all of the run's rows or none.

Executors write to quota_utilization_staging. One INSERT SELECT publishes the rows of the run, together with a tombstone
for each row of an earlier run that has no input any more; the commit marker of each window is written last. An
incomplete window never replaces a complete one. Each step has a deduplication token of the run, so it may be repeated.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.queries import UTILIZATION_SCHEMA
from spark_jobs.time_range import TimeRange

STAGING = "quota_utilization_staging"
CLIENT_LIMITS = "quota_client_limits"

_COLUMNS = ", ".join(f"`{name}`" for name in UTILIZATION_SCHEMA.fieldNames())
# UNION ALL requires equal types: staging stores levels as text.
_TOMBSTONE = _COLUMNS.replace("`level`", "toString(level)").replace("`instant_level`", "toString(instant_level)")
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
_ENDED = "window_start + window_s <= toDateTime({to_s:Int64})"

_PUBLISH = f"""
INSERT INTO headroom.quota_utilization ({_COLUMNS}, run_id, run_version, is_deleted)
SELECT {_COLUMNS}, toUUID({{run:String}}), {{version:UInt64}}, 0
FROM headroom.{STAGING}
WHERE {_OF_RUN} AND (complete = 1 OR NOT {_COMPLETE_BEFORE})
UNION ALL
SELECT {_TOMBSTONE}, toUUID({{run:String}}), {{version:UInt64}}, 1
FROM headroom.quota_utilization AS before FINAL
WHERE {_OF_RANGE} AND ({_ENDED} OR NOT {_COMPLETE_BEFORE})
  AND tuple({_KEY}) NOT IN (SELECT {_KEY} FROM headroom.{STAGING} WHERE {_OF_RUN})
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

_CLIENT = "cluster, source, quota_key, user, client_id"
# Report columns that staging lacks: renamed, of another type, or aggregated over all windows of the range.
_REPORTED = {
    "throttle_ms": "throttle_ms_max",
    "headroom": "limit - group_usage",
    "window_start": "toDateTime64(window_start, 6, 'UTC')",
    "last_throttled": "toDateTime64(last_throttled, 6, 'UTC')",
    "history_at": "arrayMap(part -> toDateTime64(part.1, 6, 'UTC'), parts)",
    "history": "arrayMap(part -> part.2, parts)",
}
_PARTS = 120  # maximum number of parts of the range in a client's history
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
    clickhouse.command(_PUBLISH, run.parameters, token=f"{run.id}/publish")
    clickhouse.command(_COMMIT, run.parameters, token=f"{run.id}/commit")


def latest(clickhouse: ClickHouse, run: Run, from_ms: int, columns: pa.Schema) -> list[dict[str, Any]]:
    """Per client and quota key the latest complete window that the run staged from `from_ms` on, or the latest
    incomplete one if there is no other, with the throttling and utilisation of all windows. Raises SourceError."""
    windows = (run.when.to_ms - from_ms) // run.when.window_ms
    bounds = {"reported_s": from_ms // 1000, "part_s": (windows // _PARTS + 1) * run.when.window_s}
    batches = clickhouse.batches(_latest(columns.names), {**run.parameters, **bounds})
    return [row for batch in batches for row in batch.select(columns.names).cast(columns).to_pylist()]


def _latest(columns: list[str]) -> str:
    expressions = ", ".join(f"{_REPORTED.get(name, f'`{name}`')} AS `{name}`" for name in columns)
    staged = f"headroom.{STAGING} WHERE {_OF_RUN} AND window_start >= toDateTime({{reported_s:Int64}})"
    return f"""
SELECT {expressions}
FROM (
    SELECT * FROM {staged} ORDER BY complete DESC, window_start DESC LIMIT 1 BY {_CLIENT}
) AS latest
INNER JOIN (
    SELECT {_CLIENT}, max(longest_ms) AS range_throttle_ms, sum(muted_s) AS range_throttled_s,
           max(last) AS last_throttled, arraySort(groupArray((start_s, used))) AS parts
    FROM (
        SELECT {_CLIENT}, intDiv(toUnixTimestamp(window_start), {{part_s:Int64}}) * {{part_s:Int64}} AS start_s,
               max(throttle_ms_max) AS longest_ms, sum(throttled_s) AS muted_s,
               maxOrNullIf(window_start, throttle_ms_max > 0) AS last,
               max(greatest(ifNull(utilization, 0), ifNull(utilization_p95, 0))) AS used
        FROM {staged}
        GROUP BY {_CLIENT}, start_s
    )
    GROUP BY {_CLIENT}
) AS windows USING ({_CLIENT})"""  # noqa: S608 - made of our own words


def clear(clickhouse: ClickHouse, run: Run) -> None:
    """Removes the run's staged rows. Rows on other shards of a cluster expire after a day (TTL).

    Raises SourceError.
    """
    for table in (STAGING, CLIENT_LIMITS):
        clickhouse.command(_CLEAR.format(table=clickhouse.stored(table)), run.parameters)
