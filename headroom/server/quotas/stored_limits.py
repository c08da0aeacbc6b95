"""Reads the latest stored quotas of a cluster, from which the history continues after a restart."""

from __future__ import annotations

from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters.clickhouse.connection import Endpoint
from exporters.model import QuotaLimit

_TIMEOUT_S = 10  # short, because the start waits for it

_LATEST = """
SELECT user, client_id, ip, quota_key, toUnixTimestamp64Milli(max(valid_from)), argMax(tuple(value), valid_from).1
FROM headroom.quota_limits FINAL
WHERE cluster = {cluster:String}
GROUP BY user, client_id, ip, quota_key
"""


def stored_limits(store: Endpoint, cluster: str) -> list[QuotaLimit]:
    """The newest row of each quota, removed ones with value None. Raises ConnectionError."""
    try:
        client = store.connect(connect_timeout=_TIMEOUT_S, send_receive_timeout=_TIMEOUT_S)
        try:
            rows = client.query(_LATEST, parameters={"cluster": cluster}).result_rows
        finally:
            client.close()
    except (ClickHouseError, OSError, ValueError) as exc:
        raise ConnectionError(" ".join(str(exc).split())) from exc
    return [QuotaLimit(cluster, user, client, ip, key, since, value) for user, client, ip, key, since, value in rows]
