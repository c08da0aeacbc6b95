"""The SQL files on a cluster: every one has rules for all of its statements."""

from __future__ import annotations

import re

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.cluster import ClusterSchema, quoted

TABLE = (
    "CREATE TABLE IF NOT EXISTS headroom.t\n(\n    `cluster` String,\n    `user` String,\n    `client_id` String\n)\n"
)
OWN = "ENGINE = ReplacingMergeTree(v)\nORDER BY client_id\nSETTINGS non_replicated_deduplication_window = 10000"


def on_cluster(*statements: str) -> tuple[str, ...]:
    return ClusterSchema("c").render(statements)


def test_every_migration_statement_has_a_cluster_rule() -> None:
    layout = ClusterSchema("c")
    for migration in schema.migrations():
        rendered = layout.render(migration.statements)
        assert rendered, migration
        for statement in rendered:
            assert "non_replicated" not in statement
            assert not re.search(r"^ENGINE = (?!Replicated)\w*MergeTree", statement, re.MULTILINE), statement
            if statement.startswith("ALTER TABLE") and "MODIFY QUERY" not in statement:
                assert re.match(r"ALTER TABLE headroom\.\w+_local\b", statement), statement


def test_every_local_table_has_a_distributed_table() -> None:
    layout, rows, on_top = ClusterSchema("c"), set[str](), set[str]()
    for statement in (text for migration in schema.migrations() for text in layout.render(migration.statements)):
        if match := re.match(r"CREATE TABLE IF NOT EXISTS headroom\.(\w+)_local", statement):
            rows.add(match[1])
        elif match := re.match(r"CREATE OR REPLACE TABLE headroom\.(\w+) AS headroom\.\1_local", statement):
            on_top.add(match[1])
    assert rows == on_top
    assert {"points", "series", "quota_usage", "job_runs", "points_1h"} <= rows


def test_table_is_replicated_and_sharded_by_client() -> None:
    below, on_top = on_cluster(TABLE + OWN)
    assert below.startswith("CREATE TABLE IF NOT EXISTS headroom.t_local\n")
    assert "ENGINE = ReplicatedReplacingMergeTree(v)" in below
    assert "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800" in below
    assert on_top == (
        "CREATE OR REPLACE TABLE headroom.t AS headroom.t_local"
        " ENGINE = Distributed('c', headroom, t_local, cityHash64(cluster, user, client_id))"
    )


def test_table_without_client_columns_is_on_the_first_shard() -> None:
    _, on_top = on_cluster("CREATE TABLE IF NOT EXISTS headroom.t (`v` UInt8)\nENGINE = MergeTree ORDER BY v")
    assert on_top.endswith("Distributed('c', headroom, t_local, 0)")


def test_materialized_view_reads_and_writes_local_tables() -> None:
    feed = "CREATE MATERIALIZED VIEW IF NOT EXISTS headroom.f TO headroom.t AS SELECT * FROM headroom.t"
    assert on_cluster(TABLE + OWN, feed)[-1] == (
        "CREATE MATERIALIZED VIEW IF NOT EXISTS headroom.f TO headroom.t_local AS SELECT * FROM headroom.t_local"
    )


@pytest.mark.parametrize(
    ("view", "added"),
    [
        ("SELECT * FROM headroom.t", ""),
        ("SELECT * FROM headroom.t JOIN headroom.t AS o USING user", "\nSETTINGS distributed_product_mode = 'local'"),
        ("SELECT * FROM headroom.t JOIN headroom.w USING v", "\nSETTINGS distributed_product_mode = 'global'"),
        ("SELECT 1 WHERE v IN (SELECT v FROM headroom.t)\nSETTINGS final = 1", ", distributed_product_mode = 'local'"),
    ],
)
def test_joins_use_local_or_global_product_mode(view: str, added: str) -> None:
    windows = "CREATE TABLE IF NOT EXISTS headroom.w (`v` UInt8)\nENGINE = MergeTree ORDER BY v"
    create = f"CREATE VIEW IF NOT EXISTS headroom.v AS {view}"
    assert on_cluster(TABLE + OWN, windows, create)[-1] == create + added


def test_renamed_table_keeps_its_rows() -> None:
    assert on_cluster(TABLE + OWN, "RENAME TABLE headroom.t TO headroom.u")[2:] == (
        "RENAME TABLE headroom.t_local TO headroom.u_local",
        "CREATE OR REPLACE TABLE headroom.u AS headroom.u_local"
        " ENGINE = Distributed('c', headroom, u_local, cityHash64(cluster, user, client_id))",
        "DROP TABLE IF EXISTS headroom.t SYNC",
    )


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE headroom.points",
        "CREATE DICTIONARY headroom.d (a String) PRIMARY KEY a",
        "CREATE TABLE IF NOT EXISTS headroom.m (`a` String) ENGINE = Memory",
        "CREATE TABLE headroom.t (`a` String)\nENGINE = MergeTree ORDER BY a",
    ],
)
def test_statement_without_a_rule_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match="no rule for a cluster"):
        on_cluster(statement)


def test_cluster_name_is_quoted_as_a_literal() -> None:
    assert quoted("it's \\ here") == "'it\\'s \\\\ here'"
