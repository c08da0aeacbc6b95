"""Reads one cluster's recorded usage and limits for `headroom quotas what-if`. Raises SourceError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exporters.model import QuotaLimit, UsageSample
from quota_metrics.simulation.outcomes import Client, Seen
from spark_jobs.clickhouse.client import ClickHouse

# Rows that ClickHouse sorts and this process holds at a time.
_ROWS_PER_SLICE = 500_000
_MAX_SLICE_MS = 3_600_000
_MIN_SLICE_MS = 10_000
_MAX_NAME_CHARS = 4_096  # in a URL; with more, all rows are read and filtered here

_DURING = """ts > fromUnixTimestamp64Milli({from_ms:Int64}) AND ts <= fromUnixTimestamp64Milli({to_ms:Int64})
  AND source = 'gateway' AND quota_key IN {keys:Array(String)}"""

_CLUSTERS = f"SELECT DISTINCT cluster FROM headroom.quota_usage WHERE {_DURING} ORDER BY cluster"  # noqa: S608 ours

_SEEN = f"""
SELECT quota_key, user, client_id, broker_id, max(at_ts.rate) AS rate_max, max(at_ts.bytes) AS bytes_max,
       count() AS samples, toUnixTimestamp64Milli(min(ts)) AS first_ms, toUnixTimestamp64Milli(max(ts)) AS last_ms
FROM
(
    SELECT quota_key, user, client_id, broker_id, ts, sum(ifNotFinite(u.rate, 0)) AS rate, sum(u.bytes) AS bytes
    FROM headroom.quota_usage AS u FINAL
    WHERE cluster = {{cluster:String}} AND {_DURING}
    GROUP BY quota_key, user, client_id, broker_id, ts
) AS at_ts
GROUP BY quota_key, user, client_id, broker_id
"""  # noqa: S608 ours

_USAGE = f"""
SELECT quota_key, toUnixTimestamp64Milli(ts) AS ts_ms, user, client_id, '' AS ip, broker_id, sum(u.bytes) AS bytes,
       sum(ifNotFinite(u.rate, 0)) AS rate, max(ifNotFinite(u.throttle_ms, 0)) AS throttle_ms,
       sum(u.throttled_requests) AS throttled_requests, max(u.interval_ms) AS interval_ms, max(u.muted_ms) AS muted_ms
FROM headroom.quota_usage AS u FINAL
WHERE cluster = {{cluster:String}} AND {_DURING}
  AND ({{all:Bool}} OR u.throttle_ms > 0 OR u.muted_ms > 0
       OR (user IN {{users:Array(String)}} AND client_id IN {{client_ids:Array(String)}}))
GROUP BY quota_key, ts, user, client_id, broker_id
ORDER BY ts, user, client_id
"""  # noqa: S608 ours

# One row per quota in force at the beginning, however old, and all later changes.
_LIMITS = """
SELECT user, client_id, ip, quota_key, toUnixTimestamp64Milli(max(valid_from)) AS since_ms,
       argMax(tuple(value), valid_from).1 AS value
FROM headroom.quota_limits FINAL
WHERE cluster = {cluster:String} AND valid_from <= fromUnixTimestamp64Milli({to_ms:Int64})
GROUP BY user, client_id, ip, quota_key, if(valid_from <= fromUnixTimestamp64Milli({from_ms:Int64}), NULL, valid_from)
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """Usage of the quota keys `keys` in (from_ms, to_ms], as the gateway recorded it."""

    clickhouse: ClickHouse
    keys: Sequence[str]
    from_ms: int
    to_ms: int

    def clusters(self) -> list[str]:
        """The clusters with usage."""
        return [row["cluster"] for row in self._rows(_CLUSTERS)]

    def seen(self, cluster: str) -> tuple[list[Seen], int, int]:
        """The clients, the interval of their rows in ms, and the number of rows."""
        rows = list(self._rows(_SEEN, cluster=cluster))
        clients = [
            Seen(
                Client(row["quota_key"], row["user"], row["client_id"], row["broker_id"]),
                row["rate_max"],
                row["bytes_max"],
            )
            for row in rows
        ]
        # A gap makes an interval seem longer, never shorter.
        usual = [(row["last_ms"] - row["first_ms"]) / (row["samples"] - 1) for row in rows if row["samples"] > 4]
        return clients, max(round(min(usual, default=1000)), 1), sum(row["samples"] for row in rows)

    def history(self, cluster: str) -> list[QuotaLimit]:
        """The configuration at the beginning, and each later change."""
        return [
            QuotaLimit(
                cluster, row["user"], row["client_id"], row["ip"], row["quota_key"], row["since_ms"], row["value"]
            )
            for row in self._rows(_LIMITS, cluster=cluster)
        ]

    def usage(self, cluster: str, names: tuple[set[str], set[str]], row_count: int) -> Iterator[UsageSample]:
        """Rows in the order of time, of all gateways together: all of the named clients, of others at least those that
        were muted or throttled.
        """
        users, client_ids = names
        everyone = sum(map(len, users | client_ids)) > _MAX_NAME_CHARS
        some = {"users": [] if everyone else sorted(users), "client_ids": [] if everyone else sorted(client_ids)}
        for from_ms, to_ms in self._slices(row_count):
            when = {"from_ms": from_ms, "to_ms": to_ms}
            for row in self._rows(_USAGE, cluster=cluster, all=everyone, **some, **when):
                yield UsageSample(cluster=cluster, source="gateway", **row)

    def _slices(self, row_count: int) -> Iterator[tuple[int, int]]:
        """Splits the time so that each part has few enough rows."""
        span_ms = self.to_ms - self.from_ms
        step_ms = span_ms * _ROWS_PER_SLICE // max(row_count, 1)
        step_ms = min(max(step_ms, _MIN_SLICE_MS), _MAX_SLICE_MS)
        for start_ms in range(self.from_ms, self.to_ms, step_ms):
            yield start_ms, min(start_ms + step_ms, self.to_ms)

    def _rows(self, sql: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        of_all = {"keys": list(self.keys), "from_ms": self.from_ms, "to_ms": self.to_ms}
        for batch in self.clickhouse.batches(sql, {**of_all, **parameters}):
            yield from batch.to_pylist()
