"""Brings a server or a cluster to the newest schema, and its tables to the configured retention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from clickhouse_connect.driver.client import Client

from exporters.clickhouse import schema
from exporters.clickhouse.cluster import DDL_SETTINGS, ClusterSchema, bootstrap, quoted
from exporters.clickhouse.connection import DATABASE, in_database
from exporters.clickhouse.options import StoreOptions
from exporters.clickhouse.schema_lock import LOG_COMMENT, schema_lock

_IS_RECORDED = (
    "SELECT count() FROM system.columns WHERE database = {database:String} AND table = 'schema_migrations'"
    " AND name = 'checksum'"
)
_ENGINE = "SELECT engine FROM system.databases WHERE name = {database:String}"
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'"
_TTL = re.compile(r" TTL (?P<column>.+?) \+ toInterval(?P<unit>Hour|Day)\((?P<length>\d+)\)")


class SchemaError(Exception):
    """The database is not one that this configuration can use."""


def apply_schema(client: Client, options: StoreOptions, database: str) -> None:
    """Applies the migrations that are missing, then the retention.

    Raises SchemaError, ChangedMigrationError, and what clickhouse-connect raises.
    """
    named = {"database": database}
    _check_engine(client, options.cluster, database)
    if not client.query(_IS_RECORDED, named).result_rows[0][0]:
        for statement in _bootstrap(options.cluster, database):
            client.command(in_database(statement, database), settings=_settings(options))
    if _pending(client, database):
        with schema_lock(client, database, _processes(options.cluster)):
            _apply(client, options, database)
    tables = {str(name): str(engine) for name, engine in client.query(_TABLES, named).result_rows}
    for statement in _retention(tables, options.retention_days):
        client.command(in_database(statement, database), settings=_settings(options))


def _check_engine(client: Client, cluster: str, database: str) -> None:
    for (engine,) in client.query(_ENGINE, {"database": database}).result_rows:
        if cluster and engine != "Replicated":
            raise SchemaError(
                f"database {database} on this node is no Replicated one, as cluster {cluster} needs it:"
                " rename it and copy its rows (docs/clickhouse.md)"
            )
        if not cluster and engine == "Replicated":
            raise SchemaError(f"database {database} is that of a cluster: set store.cluster.name")


def _bootstrap(cluster: str, database: str) -> tuple[str, ...]:
    if not cluster:
        return (schema.CREATE_DATABASE.format(database=database), *schema.RECORD_TABLE)
    return (bootstrap(cluster, database), *ClusterSchema(cluster, database).render(schema.RECORD_TABLE))


def _pending(client: Client, database: str) -> list[schema.Migration]:
    applied = client.query(in_database(schema.APPLIED, database)).result_rows
    return schema.pending({int(version): str(checksum) for version, checksum in applied})


def _apply(client: Client, options: StoreOptions, database: str) -> None:
    missing = {migration.version for migration in _pending(client, database)}  # another process may have applied them
    for migration, statements in _rendered(options.cluster, database):
        if migration.version in missing:
            for statement in (*statements, migration.record()):
                client.command(in_database(statement, database), settings=_settings(options))


def _rendered(cluster: str, database: str) -> Iterator[tuple[schema.Migration, tuple[str, ...]]]:
    """All migrations, since on a cluster a statement depends on the tables before it."""
    on_cluster = ClusterSchema(cluster, database) if cluster else None
    for migration in schema.migrations():
        yield migration, on_cluster.render(migration.statements) if on_cluster else migration.statements


def _settings(options: StoreOptions) -> dict[str, str]:
    return {"log_comment": LOG_COMMENT, **(DDL_SETTINGS if options.cluster else {})}


def _processes(cluster: str) -> str:
    return f"clusterAllReplicas({quoted(cluster)}, system.processes)" if cluster else "system.processes"


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
                f"ALTER TABLE {DATABASE}.{table} MODIFY TTL {ttl['column']} + toIntervalDay({wanted:d})"
                " SETTINGS materialize_ttl_after_modify = 0"
            )
