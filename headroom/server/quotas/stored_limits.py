"""Reads the latest stored quotas of a cluster, from which the history continues after a restart."""

from __future__ import annotations

from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit

_LATEST = """
SELECT user, client_id, ip, quota_key, toUnixTimestamp64Milli(max(valid_from)) AS since_ms,
       argMax(tuple(value), valid_from).1 AS newest
FROM quota_limits FINAL
WHERE cluster = {cluster:String}
GROUP BY user, client_id, ip, quota_key
"""


def stored_limits(clickhouse: ClickHouse, cluster: str) -> list[QuotaLimit]:
    """The newest row of each quota, removed ones with value None. Raises StoreError."""
    return [
        QuotaLimit(cluster, row["user"], row["client_id"], row["ip"], row["quota_key"], row["since_ms"], row["newest"])
        for row in clickhouse.rows(_LATEST, {"cluster": cluster})
    ]
