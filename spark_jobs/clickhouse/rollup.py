"""Keeps usage_1m up to date: ClickHouse recomputes every hour that received rows since it was last computed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.divisions import divided, is_divided
from spark_jobs.clickhouse.queries import CLIENT_KEYS, COUNTS
from spark_jobs.clickhouse.slices import Count, slices, step_ms
from spark_jobs.clickhouse.usage_query import BAD_NUMBER, store_minutes
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange

HOUR_MS = 3_600_000
_MARGIN_MS = 60_000  # an insert in progress may become visible after its received_at

_KEYS = ", ".join(f"'{key}'" for key in CLIENT_KEYS)
_DIRTY = f"""
SELECT hour_ms, newest_ms FROM (
    SELECT intDiv(toUnixTimestamp64Milli(ts), {HOUR_MS}) * {HOUR_MS} AS hour_ms,
           toUnixTimestamp64Milli(max(received_at)) AS newest_ms
    FROM headroom.quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS})
    GROUP BY hour_ms
) AS u
LEFT JOIN (
    SELECT toInt64(toUnixTimestamp(window_start)) * 1000 AS hour_ms, toUnixTimestamp64Milli(computed_at) AS computed_ms
    FROM headroom.usage_1m_windows FINAL WHERE source = {{source:String}}
) AS w USING (hour_ms)
WHERE newest_ms >= computed_ms - {_MARGIN_MS}
ORDER BY hour_ms
"""  # noqa: S608 - made of our own words
_MARK = f"""
INSERT INTO headroom.usage_1m_windows (source, window_start, computed_at, bad_rows)
SELECT {{source:String}}, toDateTime(hour_s), fromUnixTimestamp64Milli({{computed_ms:Int64}}),
       mapFromArrays(groupArrayIf(cluster, bad > 0), groupArrayIf(bad, bad > 0))
FROM (
    SELECT intDiv(toInt64(toUnixTimestamp(ts)), 3600) * 3600 AS hour_s, toString(cluster) AS cluster, count() AS bad
    FROM headroom.quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND source = {{source:String}} AND quota_key IN ({_KEYS}) AND {BAD_NUMBER}
    GROUP BY hour_s, cluster
    UNION ALL
    SELECT arrayJoin(range(intDiv({{from_ms:Int64}}, 1000), intDiv({{to_ms:Int64}}, 1000), 3600)), '', 0
)
GROUP BY hour_s"""  # noqa: S608 - made of our own words


def refresh(clickhouse: ClickHouse, source: str, from_ms: int, to_ms: int) -> int:
    """Recomputes the hours that overlap the range and have new rows; returns how many there were. Raises
    SourceError."""
    first_ms, last_ms = from_ms - from_ms % HOUR_MS, to_ms + -to_ms % HOUR_MS
    dirty = [row["hour_ms"] for row in clickhouse.rows(_DIRTY, _bounds(source, first_ms, last_ms))]
    for start_ms, end_ms in stretches(dirty):
        _compute(clickhouse, source, start_ms, end_ms)
    return len(dirty)


def stretches(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Merges adjacent hours, each extended by the hour after it: a throttle time at the end of an hour extends into the
    next one."""
    found: list[tuple[int, int]] = []
    for hour_ms in sorted({at for hour in hours for at in (hour, hour + HOUR_MS)}):
        if found and found[-1][1] == hour_ms:
            found[-1] = (found[-1][0], hour_ms + HOUR_MS)
        else:
            found.append((hour_ms, hour_ms + HOUR_MS))
    return found


def _compute(clickhouse: ClickHouse, source: str, start_ms: int, end_ms: int) -> None:
    computed_ms = time.time_ns() // 1_000_000
    when = TimeRange(start_ms, end_ms, 60)
    bounds = {
        **_bounds(source, start_ms - THROTTLE_LOOKBACK_MS, end_ms),
        "step_ms": step_ms(when),
        "window_ms": when.window_ms,
        "cluster": "",
    }
    counts = clickhouse.rows(COUNTS, bounds)
    pieces = [{**piece, "source": source} for piece in slices(_as_counts(counts), when, cores=1)]
    for piece in divided(clickhouse, pieces, stored=False, whole_buckets=False):
        clickhouse.command(store_minutes(divided=is_divided(piece)), {**piece, "computed_ms": computed_ms})
    clickhouse.command(_MARK, {**_bounds(source, start_ms, end_ms), "computed_ms": computed_ms})


def _bounds(source: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    return {"source": source, "from_ms": from_ms, "to_ms": to_ms}


def _as_counts(rows: Iterable[dict[str, Any]]) -> list[Count]:
    return [Count(row["cluster"], row["quota_key"], row["start_ms"], row["weight"]) for row in rows]
