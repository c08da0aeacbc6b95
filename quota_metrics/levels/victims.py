"""Victims: clients that nothing throttles and whose requests take longer while another is heavy at their broker.

A client is heavy at a broker in the newest window when it takes half or more of the bytes there; it was busy in those
of the last two hundred windows in which it took half of that or more. A victim's own `request_latency_ms_max` is at
least twice its median of three or more windows in which the heavy client was not busy, and 100 ms above it. A client's
page looks at the last hour, of one client, and shares the rest with the job's report.
"""

from __future__ import annotations

from typing import Final

from quota_metrics.amounts import duration_text
from quota_metrics.levels.client_signals import metrics_of
from quota_metrics.levels.definition import MEASURED_KEYS, text

COLUMNS: Final = ("slowed_by_user", "slowed_by_client_id", "slowed_at_broker_id", "latency_ms", "latency_before_ms")

_HEAVY = 0.5  # share of a broker's bytes from which a client is heavy
_BUSY = 0.5  # share of its newest rate from which it was busy in an earlier window
_QUIET_WINDOWS = 3
_LOOKBACK = 200  # windows
_LIVE_LOOKBACK = 60  # minutes, on a page
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
    heavy = _heavy(f"({used}) WHERE window_start = {newest}")
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
    return _slowed(calm, _busy(used, heavy), felt, newest)


def _heavy(used: str) -> str:
    """The client that is heavy at each broker. `used`: table and condition of `used` of each in the newest window."""
    return f"""
SELECT cluster, source, broker_id, argMax((user, client_id), used) AS who, max(used) AS most
FROM {used}
GROUP BY cluster, source, broker_id
HAVING most > 0 AND most >= {_HEAVY} * sum(used)"""  # noqa: S608 - made of our own words


def _busy(used: str, heavy: str) -> str:
    """In which windows it was busy. `used`: what it used in each window, if not of others, too."""
    return f"""
SELECT cluster, source, broker_id, any(who) AS heaviest, any(most) AS its_rate,
       groupArrayIf(window_start, (user, client_id) = who AND used >= {_BUSY} * most) AS busy_at
FROM ({used}) AS each
INNER JOIN ({heavy}) AS heavy USING (cluster, source, broker_id)
GROUP BY cluster, source, broker_id"""  # noqa: S608 - made of our own words


def _slowed(calm: str, busy: str, felt: str, newest: str) -> str:
    """Of the clients of `calm`, at their brokers: whose latencies, in `felt`, a busy client raised."""
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


_NEWEST_S = "(SELECT window_start FROM newest_minute)"
# Of latencies and of busy minutes alike: a minute of which only one is known would count as quiet.
_FROM = f"{_NEWEST_S} - INTERVAL {_LIVE_LOOKBACK - 1} MINUTE"
_UNTIL = f"{_NEWEST_S} + INTERVAL 1 MINUTE"
_FELT_METRICS = ", ".join(map(text, metrics_of("request_latency_ms")))
_THROTTLES = ", ".join(text(metric) for name in ("produce", "fetch") for metric in metrics_of(f"{name}_throttle_ms"))


def _reported(metrics: str) -> str:
    """What the client reported. A gauge without a sample is NaN."""
    return f"""
FROM points FINAL
WHERE cluster = {{cluster:String}} AND metric IN ({metrics}) AND principal = {{user:String}}
  AND client_id = {{client_id:String}} AND isFinite(value) AND bitAnd(flags, 1) = 0"""


# Whether the client may be a victim in the newest minute, which costs little to know.
IS_SLOW: Final = f"""
SELECT maxIf(value, metric IN ({_FELT_METRICS})) >= {_LEAST_MS} AND maxIf(value, metric IN ({_THROTTLES})) <= 0
       AS is_slow
{_reported(f"{_FELT_METRICS}, {_THROTTLES}")} AND ts >= {_NEWEST_S} AND ts < {_UNTIL}"""
_OF_NEWEST = f"""
SELECT cluster, source, broker_id, user, client_id, muted_ms, if(quota_key IN {MEASURED_KEYS!r}, m.usage, 0) AS used
FROM headroom_minutes AS m
WHERE (window_start, computed_at) IN (SELECT window_start, computed_at FROM newest_minute)
  AND cluster = {{cluster:String}} AND source = {{source:String}}"""  # noqa: S608 - made of our own words
_HEAVY_NOW = _heavy(f"""(
    SELECT cluster, source, broker_id, user, client_id, sum(used) AS used FROM ({_OF_NEWEST})
    GROUP BY cluster, source, broker_id, user, client_id)""")  # noqa: S608 - made of our own words
_KEYS = f"""
SELECT cityHash64(cluster, source, arrayJoin({list(MEASURED_KEYS)!r}), who.1, who.2) FROM ({_HEAVY_NOW})"""  # noqa: S608
_USED = f"""
SELECT cluster, source, broker_id, window_start, user, client_id, sum(newest) AS used
FROM (
    SELECT cluster, source, quota_key, broker_id, window_start, user, client_id, argMax(m.usage, computed_at) AS newest
    FROM headroom_minutes AS m
    PREWHERE client_key IN ({_KEYS})
    WHERE window_start >= {_FROM} AND window_start < {_UNTIL}
    GROUP BY cluster, source, quota_key, broker_id, window_start, user, client_id
)
GROUP BY cluster, source, broker_id, window_start, user, client_id"""  # noqa: S608 - made of our own words
_CALM_NOW = f"""
SELECT {_CLIENT}, arrayJoin(groupUniqArray(broker_id)) AS broker_id FROM ({_OF_NEWEST})
WHERE user = {{user:String}} AND client_id = {{client_id:String}}
GROUP BY {_CLIENT}
HAVING max(muted_ms) = 0"""  # noqa: S608 - made of our own words
_FELT_NOW = f"""
SELECT {{cluster:String}} AS cluster, {{source:String}} AS source, {{user:String}} AS user,
       {{client_id:String}} AS client_id, groupArray((minute, latency)) AS latencies
FROM (SELECT toStartOfMinute(ts) AS minute, max(value) AS latency {_reported(_FELT_METRICS)}
        AND ts >= {_FROM} AND ts < {_UNTIL} GROUP BY minute)"""  # noqa: S608 - made of our own words
# Who makes one client slow in the newest minute, if IS_SLOW: a row of COLUMNS, or none. Parameters: cluster, source,
# user, client_id.
SLOWED: Final = f"""
SELECT {", ".join(COLUMNS)}
FROM ({_slowed(_CALM_NOW, _busy(_USED, _HEAVY_NOW), _FELT_NOW, _NEWEST_S)})"""  # noqa: S608 - made of our own words
