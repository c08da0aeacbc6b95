"""A lock that lets one process at a time apply migrations, for gateways that start on one server simultaneously.

ClickHouse has no locks for clients. CREATE TABLE succeeds for one client only, so a table serves as the lock. A holder
that died leaves the table behind; a waiting process drops it once no statement of a migration has been running for
ABANDONED_S. Migrations set LOG_COMMENT, by which system.processes identifies their statements.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from exporters.clickhouse.connection import DATABASE, in_database
from exporters.clickhouse.errors import code_and_message

LOG_COMMENT = "headroom schema"
ABANDONED_S = 20.0

_TABLE = f"{DATABASE}.schema_lock"
_CREATE = f"CREATE TABLE {_TABLE} (`holder` String) ENGINE = Memory COMMENT 'held while migrations are applied'"
_DROP = f"DROP TABLE IF EXISTS {_TABLE} SYNC"
_RUNNING = f"SELECT count() FROM {{processes}} WHERE Settings['log_comment'] = '{LOG_COMMENT}'"  # noqa: S608 constants of ours
# The age check protects the lock of another waiting process that took it just after it was dropped.
_OLD = (
    "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'schema_lock'"
    " AND metadata_modification_time <= now() - toIntervalSecond({seconds:UInt32})"
)
_TABLE_ALREADY_EXISTS = 57
_POLL_S = 0.25


@contextlib.contextmanager
def schema_lock(
    client: Client, database: str = DATABASE, processes: str = "system.processes", abandoned_s: float = ABANDONED_S
) -> Iterator[None]:
    """Acquires the lock, waiting if needed. `processes`: the table of running statements, on a cluster of all nodes.

    Raises clickhouse-connect's DatabaseError and connection errors.
    """
    active_at = time.monotonic()
    while not _created(client, database):
        if client.query(_RUNNING.format(processes=processes)).result_rows[0][0]:
            active_at = time.monotonic()
        elif time.monotonic() - active_at > abandoned_s and _is_old(client, database, abandoned_s):
            client.command(in_database(_DROP, database))
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        client.command(in_database(_DROP, database))


def _is_old(client: Client, database: str, abandoned_s: float) -> bool:
    asked = {"database": database, "seconds": int(abandoned_s)}
    return bool(client.query(_OLD, parameters=asked).result_rows[0][0])


def _created(client: Client, database: str) -> bool:
    try:
        client.command(in_database(_CREATE, database))
    except DatabaseError as exc:
        if code_and_message(str(exc))[0] != _TABLE_ALREADY_EXISTS:
            raise
        return False
    return True
