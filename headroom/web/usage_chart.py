"""The chart of a client: rate, limit and throttling per broker over any range, quota changes and restarts."""

import re
import time
from typing import Final, NamedTuple

from exporters.clickhouse.client import Row
from headroom.web.parameters import BadRequestError, Given, number_of
from quota_metrics.verdict.thresholds import NEAR_LEVELS, STEPS, Thresholds

RANGES: Final = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}  # seconds
_STEPS: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600)  # seconds
_MOST_POINTS = 900
ARRIVING_S: Final = 10  # rows of the last seconds of a range that ends now may not be stored yet
_LONGEST_S = RANGES["30d"]  # quota_usage keeps as much

# Rates of a second are added up over addresses and gateways; a step has their mean and their maximum. Seconds without
# traffic have no rows: the mean is that of all seconds of the step, which the ends of the range cut. What is
# still on its way at the end is not missing traffic. Samples of an unknown interval (0) stand for the whole step.
USAGE: Final = """
SELECT broker_id, intDiv(second, {step:UInt32}) * {step:UInt32} AS at,
       least(toInt64(at) + {step:UInt32}, {to_s:Int64} - {arriving_s:Int64}) AS step_end,
       greatest(toInt64(max(second)) + 1, step_end) - greatest(toInt64(at), {from_s:Int64}) AS seconds,
       sum(s.covered_s) AS covered,
       if(covered = 0, avg(s.all_rate), sum(s.all_rate * s.covered_s) / greatest(covered, toFloat64(seconds))) AS rate,
       max(s.all_rate) AS peak, max(s.longest_ms) AS throttle_ms, sum(s.muted) AS muted_ms,
       argMax(s.quota, second).1 AS limit
FROM (
    SELECT broker_id, toUnixTimestamp(ts) AS second, sum(u.rate) AS all_rate, max(u.throttle_ms) AS longest_ms,
           max(u.interval_ms) / 1000 AS covered_s, toFloat64(max(u.muted_ms)) AS muted,
           argMax(tuple(u.limit), ts) AS quota
    FROM quota_usage AS u FINAL
    WHERE ts >= fromUnixTimestamp({from_s:Int64}) AND ts <= fromUnixTimestamp({to_s:Int64})
      AND source = {source:String} AND cluster = {cluster:String}
      AND quota_key = {quota_key:String} AND user = {user:String} AND client_id = {client_id:String}
    GROUP BY broker_id, second
) AS s
GROUP BY broker_id, at
ORDER BY broker_id, at
"""

# Of the entities that can decide about the client.
CHANGES: Final = """
SELECT toUnixTimestamp(changed_at) AS at, entity, before, after
FROM quota_changes
WHERE cluster = {cluster:String} AND quota_key = {quota_key:String}
  AND changed_at >= fromUnixTimestamp({from_s:Int64}) AND changed_at <= fromUnixTimestamp({to_s:Int64})
  AND user IN ('', '<default>', {user:String}) AND client_id IN ('', '<default>', {client_id:String})
ORDER BY changed_at
LIMIT 100
"""

# Instances that pushed for the first time although another of the same client did before, by step: restarts and further
# processes. The first that is known of a client is neither.
RESTARTS: Final = """
SELECT toUInt32(greatest(intDiv(toUnixTimestamp(first), {step:UInt32}) * {step:UInt32}, {from_s:Int64})) AS at,
       toFloat64(count()) AS instances
FROM (
    SELECT min(i.first_seen) AS first, min(first) OVER () AS oldest
    FROM client_instances AS i
    WHERE cluster = {cluster:String} AND principal = {user:String} AND client_id = {client_id:String}
    GROUP BY client_instance_id
)
WHERE first > oldest AND first >= fromUnixTimestamp({from_s:Int64}) AND first <= fromUnixTimestamp({to_s:Int64})
GROUP BY at
ORDER BY at
"""

# What the client itself measured, as one line of its own.
METRIC: Final = """
SELECT intDiv(toUnixTimestamp(ts), {step:UInt32}) * {step:UInt32} AS at, avgIf(value, isFinite(value)) AS value
FROM points
WHERE ts >= fromUnixTimestamp({from_s:Int64}) AND ts <= fromUnixTimestamp({to_s:Int64})
  AND cluster = {cluster:String} AND principal = {user:String} AND client_id = {client_id:String}
  AND metric = {metric:String}
GROUP BY at
ORDER BY at
"""


# By the words of a metric's name, the first that fits: clients send no units.
_UNITS: Final = (
    (r"\bns\b", "ns"),
    (r"ratio", ""),
    (r"byte.*rate|rate.*byte", "B/s"),
    (r"rate", "/s"),
    (r"byte", "B"),
    (r"total", ""),
    (r"latency|time", "ms"),
)


def metric_unit(name: str) -> str:
    """Of what a client measured; empty when its name says none."""
    return next((unit for words, unit in _UNITS if re.search(words, name)), "")


class ChartRange(NamedTuple):
    """Unix seconds, and the seconds of a step, so that a line has at most _MOST_POINTS."""

    from_s: int
    to_s: int
    step: int


def chart_range(query: Given) -> ChartRange:
    """Parameters: `range` (15m to 30d), or `seconds`, or `from` and `to` in Unix seconds. Raises BadRequestError."""
    now = int(time.time())
    if "from" in query or "to" in query:
        from_s, to_s = number_of(query, "from", now - 900, 9_999_999_999), number_of(query, "to", now, 9_999_999_999)
        if not from_s < to_s <= from_s + _LONGEST_S:
            raise BadRequestError("from must be before to, and at most 30 days")
    else:
        name = query.get("range", "")
        if name and name not in RANGES:
            raise BadRequestError(f"range must be one of {', '.join(RANGES)}")
        seconds = RANGES[name] if name else number_of(query, "seconds", 900, _LONGEST_S)
        from_s, to_s = now - seconds, now
    wanted = (to_s - from_s) / _MOST_POINTS
    return ChartRange(from_s, to_s, next((step for step in _STEPS if step >= wanted), _STEPS[-1]))


def steps_near(thresholds: Thresholds) -> list[Row]:
    """The levels that begin near the limit, with their share of it, ascending."""
    steps = zip(STEPS, thresholds.steps, strict=True)
    return [{"level": level, "share": share} for level, share in steps if level in NEAR_LEVELS]


def by_broker(rows: list[Row]) -> dict[str, Row]:
    """Rows of USAGE as columns: `at`, `rate`, `peak`, `throttle_ms`, `muted_ms`, `limit` of each broker."""
    brokers: dict[str, Row] = {}
    for row in rows:
        columns: Row = {name: [] for name in ("at", "rate", "peak", "throttle_ms", "muted_ms", "limit")}
        broker = brokers.setdefault(str(row["broker_id"]), columns)
        for name, values in broker.items():
            values.append(row[name])
    return brokers
