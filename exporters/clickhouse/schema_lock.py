"""A lock that lets one process at a time apply migrations, for gateways that start on one server simultaneously.

ClickHouse has no locks for clients. CREATE TABLE succeeds for one client only, so a table serves as the lock. A holder
that died leaves the table behind; a waiting process drops it once no statement of a migration has been running for
ABANDONED_S. Migrations set LOG_COMMENT, by which system.processes identifies their statements.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import TABLE_ALREADY_EXISTS, StoreError
from exporters.clickhouse.template import filled

LOG_COMMENT = "headroom schema"
ABANDONED_S = 20.0

_CREATE = (
    "CREATE TABLE {{database}}.schema_lock (`holder` String) ENGINE = Memory"
    " COMMENT 'held while migrations are applied'"
)
_DROP = "DROP TABLE IF EXISTS {{database}}.schema_lock SYNC"
_RUNNING = f"SELECT count() AS found FROM {{processes}} WHERE Settings['log_comment'] = '{LOG_COMMENT}'"  # noqa: S608 constants of ours
# The age check protects the lock of another waiting process that took it just after it was dropped.
_OLD = (
    "SELECT count() AS found FROM system.tables WHERE database = {database:String} AND name = 'schema_lock'"
    " AND metadata_modification_time <= now() - toIntervalSecond({seconds:UInt32})"
)
_POLL_S = 0.25


@contextlib.contextmanager
def schema_lock(
    clickhouse: ClickHouse, database: str, processes: str = "system.processes", abandoned_s: float = ABANDONED_S
) -> Iterator[None]:
    """Acquires the lock, waiting if needed. `processes`: the table of running statements, on a cluster of all nodes.

    Raises StoreError.
    """
    active_at = time.monotonic()
    while True:
        try:
            clickhouse.command(filled(_CREATE, {"database": database}))
            break
        except StoreError as exc:
            if exc.code != TABLE_ALREADY_EXISTS:
                raise
        if clickhouse.rows(_RUNNING.format(processes=processes))[0]["found"]:
            active_at = time.monotonic()
        elif time.monotonic() - active_at > abandoned_s:
            parameters = {"database": database, "seconds": int(abandoned_s)}
            if clickhouse.rows(_OLD, parameters)[0]["found"]:
                clickhouse.command(filled(_DROP, {"database": database}))
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        clickhouse.command(filled(_DROP, {"database": database}))
