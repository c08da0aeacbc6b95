"""Brings a server or a cluster to the newest schema, and its tables to the configured retention.

One process at a time applies migrations, also of gateways that start on one server simultaneously. ClickHouse has no
locks for clients. CREATE TABLE succeeds for one client only, so a table serves as the lock. A holder that died leaves
the table behind; a waiting process drops it once no statement of a migration has been running for ABANDONED_S.
Migrations set LOG_COMMENT, by which system.processes identifies their statements.
"""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from exporters.clickhouse import schema
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.cluster import DDL_SETTINGS, ClusterSchema, bootstrap, quoted, replicated, with_windows
from exporters.clickhouse.connection import StoreOptions
from exporters.clickhouse.errors import TABLE_ALREADY_EXISTS, StoreError
from exporters.clickhouse.schema import filled

LOG_COMMENT = "headroom schema"
ABANDONED_S = 20.0
_LOCK = (
    "CREATE TABLE {{database}}.schema_lock (`holder` String) ENGINE = Memory"
    " COMMENT 'held while migrations are applied'"
)
_UNLOCK = "DROP TABLE IF EXISTS {{database}}.schema_lock SYNC"
_RUNNING = f"SELECT count() AS statements FROM {{processes}} WHERE Settings['log_comment'] = '{LOG_COMMENT}'"  # noqa: S608 constants of ours
# The age check protects the lock of another waiting process that took it just after it was dropped.
_OLD_LOCK = (
    "SELECT count() AS locks FROM system.tables WHERE database = {database:String} AND name = 'schema_lock'"
    " AND metadata_modification_time <= now() - toIntervalSecond({seconds:UInt32})"
)
_POLL_S = 0.25
_IS_RECORDED = (
    "SELECT count() AS tables FROM system.tables WHERE database = {database:String} AND name = 'schema_migrations'"
)
_ENGINE = "SELECT engine FROM system.databases WHERE name = {database:String}"
_SHARDS = "SELECT uniqExact(shard_num) AS shards FROM system.clusters WHERE cluster = {database:String}"
_DISTRIBUTED = (
    "SELECT count() AS tables FROM system.tables WHERE database = {database:String} AND engine = 'Distributed'"
)
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'"
_TTL = re.compile(r" TTL (?P<column>.+?) \+ toInterval(?P<unit>Hour|Day)\((?P<length>\d+)\)")


class SchemaError(Exception):
    """The database is not one that this configuration can use."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the schema is laid out: on one server, on a cluster, or on the replicas of a Replicated database."""

    cluster: str = ""
    is_replicated: bool = False  # by the database, without store.cluster

    @property
    def settings(self) -> dict[str, str]:
        """Of statements that change the schema."""
        return {"log_comment": LOG_COMMENT, **(DDL_SETTINGS if self.cluster or self.is_replicated else {})}

    def rendered(self, statements: Iterable[str], on_cluster: ClusterSchema | None = None) -> tuple[str, ...]:
        """On a cluster a statement depends on the tables before it, which `on_cluster` has seen."""
        if self.cluster:
            return (on_cluster or ClusterSchema(self.cluster)).render(statements)
        return tuple(replicated(statement) if self.is_replicated else statement for statement in statements)


def apply_schema(clickhouse: ClickHouse, options: StoreOptions, database: str, values: Mapping[str, object]) -> None:
    """Applies the migrations that are missing, then windows and retention. `values`: what the schema's templates name.

    Raises SchemaError, ChangedMigrationError, KeyError for a missing value, StoreError.
    """
    named = {"database": database}
    migrations = schema.migrations(values)
    layout = _layout(clickhouse, options.cluster, database)
    if not clickhouse.rows(_IS_RECORDED, named)[0]["tables"]:
        single = "CREATE DATABASE IF NOT EXISTS {{database}}"
        first = bootstrap(layout.cluster, database) if layout.cluster else single
        for statement in (first, *layout.rendered([schema.RECORD_TABLE])):
            clickhouse.command(filled(statement, named), settings=layout.settings)
    if _pending(clickhouse, migrations, named):
        everywhere = f"clusterAllReplicas({quoted(layout.cluster)}, system.processes)"
        with schema_lock(clickhouse, database, everywhere if layout.cluster else "system.processes"):
            # Others may have applied some.
            missing = {migration.version for migration in _pending(clickhouse, migrations, named)}
            on_cluster = ClusterSchema(layout.cluster) if layout.cluster else None
            for migration in migrations:
                statements = layout.rendered(migration.statements, on_cluster)
                for statement in (*statements, migration.record()) if migration.version in missing else ():
                    clickhouse.command(filled(statement, named), settings=layout.settings)
    tables = {row["name"]: row["engine_full"] for row in clickhouse.rows(_TABLES, named)}
    for statement in (*with_windows(tables), *_retention(tables, options.retention_days)):
        clickhouse.command(filled(statement, named), settings=layout.settings)


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
            clickhouse.command(filled(_LOCK, {"database": database}))
            break
        except StoreError as exc:
            if exc.code != TABLE_ALREADY_EXISTS:
                raise
        if clickhouse.rows(_RUNNING.format(processes=processes))[0]["statements"]:
            active_at = time.monotonic()
        elif time.monotonic() - active_at > abandoned_s:
            parameters = {"database": database, "seconds": int(abandoned_s)}
            if clickhouse.rows(_OLD_LOCK, parameters)[0]["locks"]:
                clickhouse.command(filled(_UNLOCK, {"database": database}))
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        clickhouse.command(filled(_UNLOCK, {"database": database}))


def _layout(clickhouse: ClickHouse, cluster: str, database: str) -> _Layout:
    """That of the database if it exists. Raises SchemaError."""
    named = {"database": database}
    engine = next((row["engine"] for row in clickhouse.rows(_ENGINE, named)), "")
    if cluster and engine == "Shared":
        raise SchemaError(f"the replicas of database {database} share its rows: leave store.cluster.name empty")
    if cluster and engine not in ("", "Replicated"):
        raise SchemaError(
            f"database {database} on this node is no Replicated one, as cluster {cluster} needs it:"
            " rename it and copy its rows (docs/clickhouse.md)"
        )
    if cluster or engine != "Replicated":
        return _Layout(cluster)
    shards = clickhouse.rows(_SHARDS, named)[0]["shards"]
    if shards > 1 or clickhouse.rows(_DISTRIBUTED, named)[0]["tables"]:
        raise SchemaError(f"database {database} is that of a cluster: set store.cluster.name")
    return _Layout(is_replicated=True)


def _pending(clickhouse: ClickHouse, every: list[schema.Migration], named: Mapping[str, str]) -> list[schema.Migration]:
    applied = clickhouse.rows(filled(schema.APPLIED, named))
    return schema.pending(every, {row["version"]: row["checksum"] for row in applied})


def _retention(tables: Mapping[str, str], days: Mapping[str, int]) -> Iterator[str]:
    """Statements for the tables whose TTL is another one. A table that is shared by shards is the one with rows.

    Old rows go with the next merges and drops of parts, not at once.
    """
    for name, wanted in days.items():
        table = f"{name}_local" if f"{name}_local" in tables else name
        ttl = _TTL.search(tables.get(table, ""))
        if ttl is None:
            raise SchemaError(f"cannot set the retention of {name}: it is no table whose rows expire")
        if (ttl["unit"], ttl["length"]) != ("Day", str(wanted)):
            yield (
                f"ALTER TABLE {{{{database}}}}.{table} MODIFY TTL {ttl['column']} + toIntervalDay({wanted:d})"
                " SETTINGS materialize_ttl_after_modify = 0"
            )
