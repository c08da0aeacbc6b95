"""The document of `/api/v1/me`: the clients of a scope in the newest minute, and by what they can pace themselves.

Of other clients it has only what the quota that they share tells: how many they are, and what all use together.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from exporters.clickhouse.client import Row
from headroom.web.own.scopes import ClientScope
from quota_metrics.config.owners import Owners
from quota_metrics.verdict.pacing import BucketMinute, pace
from quota_metrics.verdict.thresholds import LEVELS
from quota_metrics.verdict.window import WINDOW_S
from quota_metrics.windows import QuotaWindow

# A new column is not shown before somebody has seen that it says nothing of other clients.
COLUMNS: Final = (
    "cluster", "source", "quota_key", "user", "client_id", "team", "broker_id", "level", "reason", "impact",
    "impact_reason", "cause", "limit", "limit_known", "implied_limit", "matched_entity", "usage", "usage_p95",
    "utilization", "utilization_p95", "group_usage", "group_p95", "shared_with", "throttle_ms", "muted_ms",
    "bytes", "instances", "software_name", "software_version", "window_start", "window_s",
)  # fmt: skip
_EVERY_MS: Final = 10_000  # between two computations, unless `levels.every_ms` is another
_READY_MS: Final = 5_000  # after their end, until the 60 seconds can be read
_LATE_MS: Final = 10_000  # between two questions for one that is late


def document(scope: ClientScope, rows: Sequence[Row], windows: Sequence[Row], owners: Owners, now_ms: int) -> Row:
    """`rows`: of queries.OWN; `windows`: of queries.QUOTA_WINDOWS; the worst client first."""
    window_ms = {(row["cluster"], row["broker_id"]): int(row["quota_window_ms"]) for row in windows}
    clients = []
    for row in rows:
        limit = row["limit"] if row["limit"] is not None else row["implied_limit"]
        minute = BucketMinute(row["quota_key"], limit, row["group_usage"], row["throttle_ms"], row["muted_ms"])
        length_ms = window_ms.get((row["cluster"], row["broker_id"])) or QuotaWindow().length_ms
        # Without the name of a client of others, which may take most of the shared quota.
        user, client_id = row["culprit_user"], row["culprit_client_id"]
        is_seen = scope.sees(user, client_id, owners.owner(user, client_id).team)
        reason = row["reason"] if is_seen or not row["own_reason"] else row["own_reason"]
        columns = {name: row[name] for name in COLUMNS} | {"reason": reason, "cause": row["own_cause"] or row["cause"]}
        clients.append({**columns, **pace(minute, length_ms)._asdict()})
    due_ms = 0  # when there is something newer to read
    if rows:
        start = datetime.fromisoformat(rows[0]["window_start"]).replace(tzinfo=UTC)
        due_ms = int(start.timestamp() * 1000) + 1000 * WINDOW_S + _EVERY_MS + _READY_MS
    return {
        "scope": {name: value for name, value in scope._asdict().items() if value},
        "window_start": clients[0]["window_start"] if clients else None,
        "level": max((client["level"] for client in clients), key=LEVELS.index, default=None),
        "retry_after_ms": max((client["retry_after_ms"] for client in clients), default=0),
        "next_in_ms": due_ms - now_ms if due_ms > now_ms else _LATE_MS,
        "clients": clients,
    }
