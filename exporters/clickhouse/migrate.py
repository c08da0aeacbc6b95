"""Brings a server or a cluster to the newest schema, and its tables to the configured retention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from exporters.clickhouse import schema
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.cluster import DDL_SETTINGS, ClusterSchema, bootstrap, quoted
from exporters.clickhouse.options import StoreOptions
from exporters.clickhouse.schema_lock import LOG_COMMENT, schema_lock
from exporters.clickhouse.template import filled

_IS_RECORDED = (
    "SELECT count() AS found FROM system.tables WHERE database = {database:String} AND name = 'schema_migrations'"
)
_ENGINE = "SELECT engine FROM system.databases WHERE name = {database:String}"
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'"
_TTL = re.compile(r" TTL (?P<column>.+?) \+ toInterval(?P<unit>Hour|Day)\((?P<length>\d+)\)")


class SchemaError(Exception):
    """The database is not one that this configuration can use."""


def apply_schema(clickhouse: ClickHouse, options: StoreOptions, database: str, values: Mapping[str, object]) -> None:
    """Applies the migrations that are missing, then the retention. `values`: what the schema's templates name.

    Raises SchemaError, ChangedMigrationError, KeyError for a missing value, StoreError.
    """
    named = {"database": database}
    every = schema.migrations(values)
    _check_engine(clickhouse, options.cluster, database)
    if not clickhouse.rows(_IS_RECORDED, named)[0]["found"]:
        for statement in _bootstrap(options.cluster, database):
            clickhouse.command(filled(statement, named), settings=_settings(options))
    if _pending(clickhouse, every, named):
        with schema_lock(clickhouse, database, _processes(options.cluster)):
            _apply(clickhouse, every, options, named)
    tables = {row["name"]: row["engine_full"] for row in clickhouse.rows(_TABLES, named)}
    for statement in _retention(tables, options.retention_days):
        clickhouse.command(filled(statement, named), settings=_settings(options))


def _check_engine(clickhouse: ClickHouse, cluster: str, database: str) -> None:
    for engine in (row["engine"] for row in clickhouse.rows(_ENGINE, {"database": database})):
        if cluster and engine != "Replicated":
            raise SchemaError(
                f"database {database} on this node is no Replicated one, as cluster {cluster} needs it:"
                " rename it and copy its rows (docs/clickhouse.md)"
            )
        if not cluster and engine == "Replicated":
            raise SchemaError(f"database {database} is that of a cluster: set store.cluster.name")


def _bootstrap(cluster: str, database: str) -> tuple[str, ...]:
    if not cluster:
        return ("CREATE DATABASE IF NOT EXISTS {{database}}", schema.RECORD_TABLE)
    return (bootstrap(cluster, database), *ClusterSchema(cluster).render([schema.RECORD_TABLE]))


def _pending(clickhouse: ClickHouse, every: list[schema.Migration], named: Mapping[str, str]) -> list[schema.Migration]:
    applied = clickhouse.rows(filled(schema.APPLIED, named))
    return schema.pending(every, {row["version"]: row["checksum"] for row in applied})


def _apply(
    clickhouse: ClickHouse, every: list[schema.Migration], options: StoreOptions, named: Mapping[str, str]
) -> None:
    missing = {migration.version for migration in _pending(clickhouse, every, named)}  # others may have applied some
    for migration, statements in _rendered(every, options.cluster):
        if migration.version in missing:
            for statement in (*statements, migration.record()):
                clickhouse.command(filled(statement, named), settings=_settings(options))


def _rendered(every: list[schema.Migration], cluster: str) -> Iterator[tuple[schema.Migration, tuple[str, ...]]]:
    """All migrations, since on a cluster a statement depends on the tables before it."""
    on_cluster = ClusterSchema(cluster) if cluster else None
    for migration in every:
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
                f"ALTER TABLE {{{{database}}}}.{table} MODIFY TTL {ttl['column']} + toIntervalDay({wanted:d})"
                " SETTINGS materialize_ttl_after_modify = 0"
            )
