"""The history of limits continues after a restart from the newest quotas of the cluster in the store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit
from headroom.clock import now_ms
from headroom.daemon_thread import in_daemon_thread
from quota_metrics.config.entities import Rules
from quota_metrics.config.timeline import LimitHistory, unrecorded

_TIMEOUT_S = 10.0  # short, because the start waits for it
_LATEST = """
SELECT user, client_id, ip, quota_key, toUnixTimestamp64Milli(max(valid_from)) AS since_ms,
       argMax(tuple(value), valid_from).1 AS newest
FROM quota_limits FINAL
WHERE cluster = {cluster:String}
GROUP BY user, client_id, ip, quota_key
"""


class StoredHistory:
    """The rows to record of each description of the cluster's quotas; none before the store was read."""

    def __init__(self, cluster: str, store: ClickHouse) -> None:
        self._cluster = cluster
        self._store = replace(store, timeout_s=_TIMEOUT_S)
        self._history: LimitHistory | None = None

    async def changes(self, described: Rules) -> list[QuotaLimit]:
        """Raises ConnectionError while the history cannot be read."""
        stored = partial(in_daemon_thread, partial(stored_limits, self._store, self._cluster))
        if self._history is None:
            try:
                self._history = LimitHistory(self._cluster, await stored())
            except ConnectionError as exc:
                raise ConnectionError(f"cannot read the stored limits: {exc}") from exc
        changes = self._history.changes(described, now_ms())
        if not changes:
            return changes
        try:
            return unrecorded(changes, await stored())
        except ConnectionError:
            return changes  # a row that repeats another gateway's is harmless: quota_changes ignores it


def stored_limits(clickhouse: ClickHouse, cluster: str) -> list[QuotaLimit]:
    """The newest row of each quota, removed ones with value None. Raises StoreError."""
    return [
        QuotaLimit(cluster, row["user"], row["client_id"], row["ip"], row["quota_key"], row["since_ms"], row["newest"])
        for row in clickhouse.rows(_LATEST, {"cluster": cluster})
    ]
