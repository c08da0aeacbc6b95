"""What the report of quota-headroom reads of a run that has staged its rows: counts of all clients, and the worst ones.

The report is made in memory, and a row takes about 5 kB: ClickHouse chooses the worst clients; quota_utilization has
all.
"""

from collections import defaultdict
from typing import Any

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS
from quota_metrics.minutes.records import records
from quota_metrics.verdict.impact import HARMS
from quota_metrics.verdict.thresholds import LEVELS, NEAR_LEVELS
from quota_metrics.verdict.victims import LOOKBACK_WINDOWS, ClientUsage, Victim, victims
from spark_jobs.clickhouse.queries import STAGING
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.options import HeadroomOptions

_HISTORY_POINTS = 120  # at most, of a client's history
_NO_VICTIM = {"slowed_by_user": "", "slowed_by_client_id": "", "slowed_at_broker_id": None, "latency_before_ms": None}
_CLIENT = "cluster, source, quota_key, user, client_id"
_IN_REPORT = f"{STAGING} WHERE run = {{run:String}} AND window_start >= toDateTime({{reported_s:Int64}})"
# Per client and quota key the start of its latest complete window, or of its latest one if none is complete.
_LATEST = f"""
SELECT {_CLIENT}, argMax(window_start, (complete, window_start)) AS latest_start,
       argMax((toString(level), throttle_ms_max, ifNull(utilization, 0), impact), (complete, window_start)) AS latest,
       max(throttle_ms_max) AS range_throttle_ms, sum(throttled_s) AS range_throttled_s,
       maxOrNullIf(window_start, throttle_ms_max > 0) AS last_throttled
FROM {_IN_REPORT} AND ({{user:String}} = '' OR user = {{user:String}})
  AND ({{client_id:String}} = '' OR client_id = {{client_id:String}})
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
_LEVELS = f"SELECT latest.1 AS level, count() AS clients FROM ({_LATEST}) GROUP BY level"  # noqa: S608 - our own words
# Harm to a client near its limit, level, throttle time, earlier throttling, utilisation.
_WORST_FIRST = f"""
ORDER BY if(latest.1 IN {NEAR_LEVELS!r}, indexOf({list(HARMS)!r}, latest.4), 0) DESC,
         indexOf({list(LEVELS)!r}, latest.1) DESC, latest.2 DESC, range_throttle_ms > 0 AND latest.2 <= 0 DESC,
         latest.3 DESC, cluster, client_id, user, quota_key"""
_WORST = f"SELECT * FROM ({_LATEST}){_WORST_FIRST} LIMIT {{most:UInt64}}"  # noqa: S608 - made of our own words
_HISTORY = f"""
SELECT {_CLIENT}, arraySort(groupArray((start_s, used))) AS points
FROM (
    SELECT {_CLIENT}, intDiv(toUnixTimestamp(window_start), {{point_s:Int64}}) * {{point_s:Int64}} AS start_s,
           max(greatest(ifNull(utilization, 0), ifNull(utilization_p95, 0))) AS used
    FROM {_IN_REPORT} AND ({_CLIENT}) IN (SELECT {_CLIENT} FROM ({_WORST}))
    GROUP BY {_CLIENT}, start_s
)
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
_OF_WORST = f"""
FROM (
    SELECT * FROM {_IN_REPORT} AND ({_CLIENT}, window_start) IN (SELECT {_CLIENT}, latest_start FROM ({_WORST}))
) AS rows
INNER JOIN ({_WORST}) AS worst USING ({_CLIENT})
INNER JOIN ({_HISTORY}) AS history USING ({_CLIENT}){_WORST_FIRST}"""  # noqa: S608 - made of our own words
# Report columns that staging lacks: renamed, of another type, or aggregated over all windows of the range. Arrow has no
# enums.
_REPORTED = {
    "level": "toString(rows.level)",
    "instant_level": "toString(rows.instant_level)",
    "throttle_ms": "throttle_ms_max",
    "headroom": "limit - group_usage",
    "window_start": "toDateTime64(window_start, 6, 'UTC')",
    "last_throttled": "toDateTime64(last_throttled, 6, 'UTC')",
    "history_at": "arrayMap(point -> toDateTime64(point.1, 6, 'UTC'), points)",
    "history": "arrayMap(point -> point.2, points)",
}


def levels(clickhouse: ClickHouse, run: JobRun, user: str = "", client_id: str = "") -> dict[str, int]:
    """How many clients ('': of any name) are at each level in their latest window of the reported range. Raises
    StoreError."""
    clients = {**_reported(run), "user": user, "client_id": client_id}
    return {row["level"]: row["clients"] for row in clickhouse.rows(_LEVELS, clients)}


def worst(clickhouse: ClickHouse, run: JobRun, columns: pa.Schema, options: HeadroomOptions) -> list[dict[str, Any]]:
    """Per client and quota key, worst first, the latest complete window of the reported range, or the latest incomplete
    one if there is no other, with the throttling and utilisation of all windows. Raises StoreError."""
    when = options.when
    point_s = ((when.to_ms - when.from_ms) // when.window_ms // _HISTORY_POINTS + 1) * when.window_s
    chosen = {"user": options.user, "client_id": options.client_id, "most": options.most}
    stored = pa.schema([column for column in columns if column.name not in _NO_VICTIM])
    expressions = ", ".join(f"{_REPORTED.get(name, f'`{name}`')} AS `{name}`" for name in stored.names)
    query = f"SELECT {expressions} {_OF_WORST}"
    batches = clickhouse.batches(query, {**_reported(run), **chosen, "point_s": point_s})
    slowed = {(row.cluster, row.source, row.user, row.client_id): row for row in slowed_clients(clickhouse, run)}
    rows = []
    for row in (row for batch in batches for row in batch.select(stored.names).cast(stored).to_pylist()):
        victim = slowed.get((row["cluster"], row["source"], row["user"], row["client_id"]))
        victim_columns = {name: getattr(victim, name) for name in _NO_VICTIM} if victim else _NO_VICTIM
        rows.append({**row, **victim_columns})
    return rows


def _reported(run: JobRun) -> dict[str, Any]:
    return {**run.parameters, "reported_s": run.options.when.from_ms // 1000}


# What victims follow from: of the newest window all rows, of those before it the rows of who was heaviest at a broker
# then, and what clients felt.
_NEWEST = f"(SELECT argMax(window_start, (complete, window_start)) FROM {_IN_REPORT})"  # noqa: S608 - our own words
_LATELY = f"{_IN_REPORT} AND window_start <= {_NEWEST} AND window_start > {_NEWEST} - {{lookback:UInt32}} * window_s"
_USAGE = f"""
SELECT cluster, source, broker_id, user, client_id, quota_key, toInt64(toUnixTimestamp(window_start)) AS start_s, usage,
       throttled_s > 0 OR ifNull(client_throttle_ms_max, 0) > 0 AS is_throttled
FROM {_LATELY} AND (window_start = {_NEWEST} OR (cluster, source, broker_id, user, client_id) IN (
    SELECT cluster, source, broker_id, argMax((user, client_id), rate).1, argMax((user, client_id), rate).2
    FROM (
        SELECT cluster, source, broker_id, user, client_id, sum(usage) AS rate
        FROM {_IN_REPORT} AND window_start = {_NEWEST} AND quota_key IN {BYTE_KEYS!r}
        GROUP BY cluster, source, broker_id, user, client_id
    )
    GROUP BY cluster, source, broker_id))"""  # noqa: S608 - made of our own words
_FELT = f"""
SELECT cluster, source, user, client_id, toInt64(toUnixTimestamp(window_start)) AS start_s,
       max(request_latency_ms_max) AS latency_ms
FROM {_LATELY} AND request_latency_ms_max IS NOT NULL
GROUP BY cluster, source, user, client_id, start_s"""  # noqa: S608 - made of our own words


def slowed_clients(clickhouse: ClickHouse, run: JobRun) -> list[Victim]:
    """The victims in the newest window of the reported range. Raises StoreError."""
    span = {**_reported(run), "lookback": LOOKBACK_WINDOWS}
    usage = [
        ClientUsage((row[0], row[1], row[2]), (row[3], row[4]), row[5], row[6], row[7], bool(row[8]))
        for row in records(clickhouse.table(_USAGE, span))
    ]
    latencies: dict[tuple[str, str, tuple[str, str]], dict[int, float]] = defaultdict(dict)
    for cluster, source, user, client_id, start_s, latency_ms in records(clickhouse.table(_FELT, span)):
        latencies[cluster, source, (user, client_id)][start_s] = latency_ms
    return victims(usage, latencies, max((row.window_start_ms for row in usage), default=0))
