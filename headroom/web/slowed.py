"""Who makes the requests of one client slow in the newest minute: what a client's page asks the store for.

The rule is quota_metrics.verdict.victims. A page looks at the last hour; latencies and busy minutes are of the same
minutes, because one of which only one is known would count as quiet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exporters.clickhouse.client import Row
from exporters.model import BYTE_KEYS
from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.victims import LEAST_MS, is_busy, is_heavy, slowed

METRICS: Final[Mapping[str, Any]] = {
    "latencies": list(metrics_of("request_latency_ms")),
    "throttles": [metric for name in ("produce", "fetch") for metric in metrics_of(f"{name}_throttle_ms")],
}

_NEWEST = "(SELECT n.window_start FROM headroom_minutes AS n ORDER BY n.window_start DESC LIMIT 1)"
_OF_HOUR = f"window_start > {_NEWEST} - INTERVAL 60 MINUTE AND window_start <= {_NEWEST}"
_OF_NEWEST = f"""headroom_minutes AS m
WHERE (m.window_start, m.computed_at) IN (
    SELECT c.window_start, max(c.computed_at) FROM headroom_minutes AS c WHERE c.window_start = {_NEWEST}
    GROUP BY c.window_start)
  AND m.cluster = {{cluster:String}} AND m.source = {{source:String}}"""  # noqa: S608 - made of our own words
_OF_CLIENT = "user = {user:String} AND client_id = {client_id:String}"
_USED = f"m.quota_key IN {BYTE_KEYS!r}"
# What the client reported in each minute. A gauge without a sample is NaN.
FELT: Final = f"""
SELECT toInt64(toUnixTimestamp(toStartOfMinute(ts))) AS start_s,
       maxOrNullIf(value, metric IN {{latencies:Array(String)}}) AS latency_ms,
       maxIf(value, metric IN {{throttles:Array(String)}}) AS throttle_ms,
       toInt64(toUnixTimestamp({_NEWEST})) AS newest_s
FROM points FINAL
WHERE cluster = {{cluster:String}} AND principal = {{user:String}} AND client_id = {{client_id:String}}
  AND (metric IN {{latencies:Array(String)}} OR metric IN {{throttles:Array(String)}})
  AND isFinite(value) AND bitAnd(flags, 1) = 0
  AND ts >= {_NEWEST} - INTERVAL 59 MINUTE AND ts < {_NEWEST} + INTERVAL 1 MINUTE
GROUP BY start_s"""  # noqa: S608 - made of our own words
# At each broker of the client: who takes most of it, what that one and all clients take, and how long the client was
# muted anywhere.
HEAVY: Final = f"""
SELECT broker_id, argMax((name, id), rate).1 AS user, argMax((name, id), rate).2 AS client_id,
       max(rate) AS most, sum(rate) AS total, any(muted) AS muted_ms
FROM (
    SELECT broker_id, m.user AS name, m.client_id AS id, sumIf(m.usage, {_USED}) AS rate,
           (SELECT max(muted_ms) FROM {_OF_NEWEST} AND {_OF_CLIENT}) AS muted
    FROM {_OF_NEWEST} AND m.broker_id IN (SELECT broker_id FROM {_OF_NEWEST} AND {_OF_CLIENT})
    GROUP BY broker_id, name, id
)
GROUP BY broker_id
ORDER BY most DESC"""  # noqa: S608 - made of our own words
# What those clients used in each minute of the hour.
BUSY: Final = f"""
SELECT broker_id, user, client_id, toInt64(toUnixTimestamp(window_start)) AS start_s, sum(newest) AS rate
FROM (
    SELECT broker_id, user, client_id, quota_key, window_start, argMax(m.usage, computed_at) AS newest
    FROM headroom_minutes AS m
    PREWHERE client_key IN (
        SELECT cityHash64({{cluster:String}}, {{source:String}}, arrayJoin({list(BYTE_KEYS)!r}), user, client_id)
        FROM ({HEAVY}))
    WHERE {_OF_HOUR} AND cluster = {{cluster:String}} AND source = {{source:String}}
    GROUP BY broker_id, user, client_id, quota_key, window_start
)
GROUP BY broker_id, user, client_id, start_s"""  # noqa: S608 - made of our own words


def may_be_slowed(felt: Sequence[Row]) -> bool:
    """By what it felt in the newest minute, which costs little to know."""
    now = next((row for row in felt if row["start_s"] == row["newest_s"]), None)
    return now is not None and (now["latency_ms"] or 0.0) >= LEAST_MS and now["throttle_ms"] <= 0


def slowed_by(client: Mapping[str, str], felt: Sequence[Row], heavy: Sequence[Row], busy: Sequence[Row]) -> Row | None:
    """The heaviest client that raised its latency. Rows of FELT, HEAVY and BUSY."""
    newest_s = int(felt[0]["newest_s"])
    latencies = {int(row["start_s"]): row["latency_ms"] for row in felt if row["latency_ms"] is not None}
    for at in heavy:
        is_itself = (at["user"], at["client_id"]) == (client["user"], client["client_id"])
        if is_itself or at["muted_ms"] > 0 or not is_heavy(at["most"], at["total"]):
            continue
        culprit = (at["broker_id"], at["user"], at["client_id"])
        busy_at = {
            int(row["start_s"])
            for row in busy
            if (row["broker_id"], row["user"], row["client_id"]) == culprit and is_busy(row["rate"], at["most"])
        }
        latency = slowed(latencies, busy_at, newest_s)
        if latency is not None:
            return {
                "slowed_by_user": at["user"],
                "slowed_by_client_id": at["client_id"],
                "slowed_at_broker_id": at["broker_id"],
                "latency_ms": latency[0],
                "latency_before_ms": latency[1],
            }
    return None
