"""Victims: clients that nothing throttles and whose requests take longer while another is heavy at their broker.

A client is heavy at a broker in the newest window when it takes half or more of the bytes there; it was busy in those
of the last two hundred windows in which it took half of that or more. A victim's own `request_latency_ms_max` is at
least twice its median of three or more windows in which the heavy client was not busy, and 100 ms above it. The job's
report and a client's page read the same SELECT.
"""

from __future__ import annotations

from typing import Final

from quota_metrics.amounts import duration_text
from quota_metrics.levels.client_signals import metrics_of
from quota_metrics.levels.definition import MEASURED_KEYS

COLUMNS: Final = ("slowed_by_user", "slowed_by_client_id", "slowed_at_broker_id", "latency_ms", "latency_before_ms")

_HEAVY = 0.5  # share of a broker's bytes from which a client is heavy
_BUSY = 0.5  # share of its newest rate from which it was busy in an earlier window
_QUIET_WINDOWS = 3
_LOOKBACK = 200  # windows
_FACTOR = 2.0
_LEAST_MS = 100.0
_CLIENT = "cluster, source, user, client_id"


def slowed_text(latency_ms: float, before_ms: float) -> str:
    """`requests take up to 900 ms, 20 ms before`."""
    return f"requests take up to {duration_text(latency_ms)}, {duration_text(before_ms)} before"


def victims(in_report: str) -> str:
    """The SELECT of victims, one row for each. `in_report`: table and condition of rows with the names of
    quota_utilization. Its columns are those of the client and COLUMNS."""
    newest = f"(SELECT argMax(window_start, (complete, window_start)) FROM {in_report})"  # noqa: S608 - our own words
    in_report = f"{in_report} AND window_start > {newest} - {_LOOKBACK} * window_s"
    used = f"""
SELECT cluster, source, broker_id, window_start, user, client_id, sum(usage) AS used
FROM {in_report} AND quota_key IN {MEASURED_KEYS!r}
GROUP BY cluster, source, broker_id, window_start, user, client_id"""  # noqa: S608 - made of our own words
    heavy = f"""
SELECT cluster, source, broker_id, argMax((user, client_id), used) AS who, max(used) AS most
FROM ({used})
WHERE window_start = {newest}
GROUP BY cluster, source, broker_id
HAVING most > 0 AND most >= {_HEAVY} * sum(used)"""  # noqa: S608 - made of our own words
    busy = f"""
SELECT cluster, source, broker_id, any(who) AS heaviest, any(most) AS its_rate,
       groupArrayIf(window_start, (user, client_id) = who AND used >= {_BUSY} * most) AS busy_at
FROM ({used}) AS each
INNER JOIN ({heavy}) AS heavy USING (cluster, source, broker_id)
GROUP BY cluster, source, broker_id"""  # noqa: S608 - made of our own words
    calm = f"""
SELECT {_CLIENT}, arrayJoin(groupUniqArray(broker_id)) AS broker_id
FROM {in_report} AND window_start = {newest}
GROUP BY {_CLIENT}
HAVING max(throttled_s) = 0 AND max(ifNull(client_throttle_ms_max, 0)) = 0"""  # noqa: S608 - made of our own words
    felt = f"""
SELECT {_CLIENT}, groupArray((window_start, latency)) AS latencies
FROM (
    SELECT {_CLIENT}, window_start, assumeNotNull(max(request_latency_ms_max)) AS latency
    FROM {in_report} AND request_latency_ms_max IS NOT NULL
    GROUP BY {_CLIENT}, window_start
)
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words
    return f"""
SELECT {_CLIENT}, argMax(heaviest, its_rate).1 AS slowed_by_user, argMax(heaviest, its_rate).2 AS slowed_by_client_id,
       toNullable(argMax(broker_id, its_rate)) AS slowed_at_broker_id,
       toNullable(argMax(during, its_rate)) AS latency_ms,
       toNullable(argMax(before, its_rate)) AS latency_before_ms
FROM (
    SELECT {_CLIENT}, broker_id, heaviest, its_rate, {newest} AS newest,
           arrayFilter(one -> NOT has(busy_at, one.1), latencies).2 AS quiet,
           arrayFirst(one -> one.1 = newest, latencies).2 AS during,
           toFloat64(arrayReduce('medianExact', quiet)) AS before
    FROM ({calm}) AS calm
    INNER JOIN ({busy}) AS busy USING (cluster, source, broker_id)
    INNER JOIN ({felt}) AS felt USING ({_CLIENT})
    WHERE (user, client_id) != heaviest
)
WHERE length(quiet) >= {_QUIET_WINDOWS} AND during >= {_FACTOR} * before AND during >= before + {_LEAST_MS}
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words


_NEWEST = "(SELECT window_start, computed_at FROM newest_minute)"
_SINCE = f"(SELECT window_start FROM newest_minute) - INTERVAL {_LOOKBACK} MINUTE"  # noqa: S608 - made of our own words
_OWN = "user = {user:String} AND client_id = {client_id:String}"
_MINUTES = "headroom_minutes WHERE cluster = {cluster:String} AND source = {source:String}"
_OF_NEWEST = f"SELECT * FROM {_MINUTES} AND (window_start, computed_at) IN {_NEWEST}"  # noqa: S608 - made of our own words
_HEAVIEST = f"""
SELECT user, client_id
FROM ({_OF_NEWEST})
WHERE broker_id IN (SELECT broker_id FROM ({_OF_NEWEST}) WHERE {_OWN}) AND quota_key IN {MEASURED_KEYS!r}
GROUP BY broker_id, user, client_id
ORDER BY sum(usage) DESC
LIMIT 1 BY broker_id"""  # noqa: S608 - made of our own words
_FELT = ", ".join(f"'{metric}'" for metric in metrics_of("request_latency_ms"))
_THROTTLED = ", ".join(f"'{metric}'" for name in ("produce", "fetch") for metric in metrics_of(f"{name}_throttle_ms"))
# A gauge without a sample is NaN.
_REPORTED = f"""
SELECT toStartOfMinute(ts) AS window_start, user, client_id, maxOrNullIf(value, metric IN ({_FELT})) AS latency,
       maxOrNullIf(value, metric IN ({_THROTTLED})) AS throttled
FROM (
    SELECT ts, principal AS user, p.client_id AS client_id, metric, value
    FROM points AS p FINAL
    WHERE cluster = {{cluster:String}} AND metric IN ({_FELT}, {_THROTTLED}) AND principal = {{user:String}}
      AND p.client_id = {{client_id:String}} AND ts > {_SINCE} AND isFinite(value) AND bitAnd(flags, 1) = 0
)
GROUP BY window_start, user, client_id"""  # noqa: S608 - made of our own words
_ROWS = f"""
SELECT cluster, source, user, client_id, quota_key, broker_id, window_start, toUInt32(60) AS window_s, 1 AS complete,
       u.usage AS usage, u.muted / 1000 AS throttled_s, r.throttled AS client_throttle_ms_max,
       r.latency AS request_latency_ms_max
FROM (
    SELECT cluster, source, quota_key, user, client_id, broker_id, window_start, usage, muted_ms AS muted
    FROM ({_OF_NEWEST})
    UNION ALL
    SELECT cluster, source, quota_key, user, client_id, broker_id, window_start,
           argMax(m.usage, m.computed_at) AS usage, argMax(m.muted_ms, m.computed_at) AS muted
    FROM {_MINUTES.replace(" WHERE", " AS m WHERE")} AND window_start > {_SINCE}
      AND window_start < (SELECT window_start FROM newest_minute)
      AND (user, client_id) IN (SELECT {{user:String}}, {{client_id:String}} UNION ALL {_HEAVIEST})
    GROUP BY cluster, source, quota_key, user, client_id, broker_id, window_start
) AS u
LEFT JOIN ({_REPORTED}) AS r USING (window_start, user, client_id)"""  # noqa: S608 - made of our own words
# Who makes one client's requests slow in the newest minute: a row of COLUMNS, or none. Of the minutes before only this
# client and the heaviest at its brokers are read. Parameters: cluster, source, user, client_id.
SLOWED: Final = f"SELECT {', '.join(COLUMNS)} FROM ({victims(f'({_ROWS}) WHERE 1')}) WHERE {_OWN}"  # noqa: S608
