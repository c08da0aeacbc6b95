"""Reads from the store which series were described recently: a restarted worker need not describe them again."""

from collections.abc import Iterator
from typing import Any

from exporters.clickhouse.store import Store
from telemetry.decode.series import Ids, owner

_MAX_SERIES = 20_000_000  # 160 MB of ids, in the server and here

_COLUMNS = ("cluster", "principal", "client_id", "instance", "first_ms")
_RECENT = """
SELECT cluster, principal, client_id, instance, toUnixTimestamp64Milli(min(last_seen)) AS first_ms,
    groupArray(series_id) AS ids
FROM (
    SELECT cluster, principal, client_id, replaceAll(toString(client_instance_id), '-', '') AS instance, last_seen,
        series_id
    FROM series
    WHERE last_seen > fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
    LIMIT {limit:UInt64}
)
GROUP BY cluster, principal, client_id, instance
ORDER BY first_ms
SETTINGS max_execution_time = 60
"""


def recent_series(store: Store, since_ms: int) -> Iterator[tuple[bytes, int, Ids]]:
    """Yields client (`series.identity`), when its first series was described, and the ids; in order of that time.

    `since_ms`: exclusive. Raises StoreError.
    """
    clients = store.query_arrow(_RECENT, {"since_ms": since_ms, "limit": _MAX_SERIES}).combine_chunks()
    if not clients.num_rows:
        return
    *names, first_ms = (clients.column(name).to_pylist() for name in _COLUMNS)
    lists: Any = clients.column("ids").chunk(0)
    ids, ends = lists.values.to_numpy(), lists.offsets.to_numpy()
    for n, (*name, written_ms) in enumerate(zip(*names, first_ms, strict=True)):
        yield owner(*name), int(written_ms), ids[ends[n] : ends[n + 1]].copy()
