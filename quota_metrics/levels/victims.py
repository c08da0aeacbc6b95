"""Victims: clients that nothing throttles and whose requests take longer while another is heavy at their broker.

A client is heavy at a broker in the newest window when it takes half or more of the bytes there; it was busy in those
of the last two hundred windows in which it took half of that or more. A victim's own `request_latency_ms_max` is at
least twice its median of three or more windows in which the heavy client was not busy, and 100 ms above it.
"""

from __future__ import annotations

from typing import Final

from quota_metrics.levels.definition import MEASURED_KEYS

COLUMNS: Final = ("slowed_by_user", "slowed_by_client_id", "slowed_at_broker_id", "latency_before_ms")

_HEAVY = 0.5  # share of a broker's bytes from which a client is heavy
_BUSY = 0.5  # share of its newest rate from which it was busy in an earlier window
_QUIET_WINDOWS = 3
_LOOKBACK = 200  # windows
_FACTOR = 2.0
_LEAST_MS = 100.0
_CLIENT = "cluster, source, user, client_id"


def victims(in_report: str) -> str:
    """The SELECT of victims, one row for each, of staged rows. `in_report`: table and condition of the rows of a run.
    Its columns are those of the client and COLUMNS."""
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
