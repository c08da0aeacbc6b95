"""What quota-headroom reports, from a run's staged rows: counts of all clients, rows of the worst ones.

The report is made in memory, a row takes about 5 kB, so ClickHouse chooses the worst clients; `quota_utilization` has
all.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.publication import STAGING, Run

_PARTS = 120  # maximum number of parts of the range in a client's history
_CLIENT = "cluster, source, quota_key, user, client_id"
_STAGED = f"headroom.{STAGING} WHERE run = {{run:String}} AND window_start >= toDateTime({{reported_s:Int64}})"
# Per client and quota key the start of its latest complete window, or of its latest one if none is complete.
_LATEST = f"""
SELECT {_CLIENT}, argMax(window_start, (complete, window_start)) AS latest_start,
       argMax((level, throttle_ms_max, ifNull(utilization, 0)), (complete, window_start)) AS latest,
       max(throttle_ms_max) AS range_throttle_ms, sum(throttled_s) AS range_throttled_s,
       maxOrNullIf(window_start, throttle_ms_max > 0) AS last_throttled
FROM {_STAGED} AND ({{user:String}} = '' OR user = {{user:String}})
  AND ({{client_id:String}} = '' OR client_id = {{client_id:String}})
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
_LEVELS = f"SELECT latest.1 AS level, count() AS clients FROM ({_LATEST}) GROUP BY level"  # noqa: S608 - our own words
# The order of headroom_report.worst_first.
_WORST = f"""
SELECT * FROM ({_LATEST})
ORDER BY indexOf({{levels:Array(String)}}, latest.1) DESC, latest.2 DESC, range_throttle_ms > 0 AND latest.2 <= 0 DESC,
         latest.3 DESC, cluster, client_id, user, quota_key
LIMIT {{most:UInt64}}"""  # noqa: S608 - made of our own words
_HISTORY = f"""
SELECT {_CLIENT}, arraySort(groupArray((start_s, used))) AS parts
FROM (
    SELECT {_CLIENT}, intDiv(toUnixTimestamp(window_start), {{part_s:Int64}}) * {{part_s:Int64}} AS start_s,
           max(greatest(ifNull(utilization, 0), ifNull(utilization_p95, 0))) AS used
    FROM {_STAGED} AND ({_CLIENT}) IN (SELECT {_CLIENT} FROM ({_WORST}))
    GROUP BY {_CLIENT}, start_s
)
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
# Report columns that staging lacks: renamed, of another type, or aggregated over all windows of the range.
_REPORTED = {
    "throttle_ms": "throttle_ms_max",
    "headroom": "limit - group_usage",
    "window_start": "toDateTime64(window_start, 6, 'UTC')",
    "last_throttled": "toDateTime64(last_throttled, 6, 'UTC')",
    "history_at": "arrayMap(part -> toDateTime64(part.1, 6, 'UTC'), parts)",
    "history": "arrayMap(part -> part.2, parts)",
}


def levels(clickhouse: ClickHouse, run: Run, from_ms: int) -> dict[str, int]:
    """How many clients are at each level in their latest window from `from_ms` on. Raises SourceError."""
    asked = {**run.parameters, "reported_s": from_ms // 1000, "user": "", "client_id": ""}
    return {row["level"]: row["clients"] for row in clickhouse.rows(_LEVELS, asked)}


def worst(clickhouse: ClickHouse, run: Run, from_ms: int, columns: pa.Schema, **chosen: Any) -> list[dict[str, Any]]:
    """Per client and quota key the latest complete window that the run staged from `from_ms` on, or the latest
    incomplete one if there is no other, with the throttling and utilisation of all windows. `chosen`: `user` and
    `client_id`, '' for all, `levels`, best first, and `most` rows. Raises SourceError."""
    windows = (run.when.to_ms - from_ms) // run.when.window_ms
    bounds = {"reported_s": from_ms // 1000, "part_s": (windows // _PARTS + 1) * run.when.window_s}
    batches = clickhouse.batches(_worst(columns.names), {**run.parameters, **bounds, **chosen})
    return [row for batch in batches for row in batch.select(columns.names).cast(columns).to_pylist()]


def _worst(columns: list[str]) -> str:
    expressions = ", ".join(f"{_REPORTED.get(name, f'`{name}`')} AS `{name}`" for name in columns)
    return f"""
SELECT {expressions}
FROM (
    SELECT * FROM {_STAGED} AND ({_CLIENT}, window_start) IN (SELECT {_CLIENT}, latest_start FROM ({_WORST}))
) AS rows
INNER JOIN ({_WORST}) AS worst USING ({_CLIENT})
INNER JOIN ({_HISTORY}) AS history USING ({_CLIENT})"""  # noqa: S608 - made of our own words
