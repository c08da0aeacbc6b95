"""The SQL files on a cluster: every one has rules for all of its statements."""

from __future__ import annotations

import re

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.cluster import ClusterSchema, quoted, replicated
from quota_metrics.verdict.thresholds import SCHEMA_VALUES

TABLE = (
    "CREATE TABLE IF NOT EXISTS {{database}}.t"
    "\n(\n    `cluster` String,\n    `user` String,\n    `client_id` String\n)\n"
)
OWN = "ENGINE = ReplacingMergeTree(v)\nORDER BY client_id\nSETTINGS non_replicated_deduplication_window = 10000"


def on_cluster(*statements: str) -> tuple[str, ...]:
    return ClusterSchema("c").render(statements)


def test_every_migration_statement_has_a_cluster_rule() -> None:
    layout = ClusterSchema("c")
    for migration in schema.migrations(SCHEMA_VALUES):
        rendered = layout.render(migration.statements)
        assert rendered, migration
        for statement in rendered:
            assert "non_replicated" not in statement
            assert not re.search(r"^ENGINE = (?!Replicated)\w*MergeTree", statement, re.MULTILINE), statement
            if statement.startswith("ALTER TABLE") and "MODIFY QUERY" not in statement:
                assert re.match(r"ALTER TABLE \{\{database\}\}\.\w+_local\b", statement), statement


def test_table_is_replicated_and_sharded_by_client() -> None:
    below, on_top = on_cluster(TABLE + OWN)
    assert below.startswith("CREATE TABLE IF NOT EXISTS {{database}}.t_local\n")
    assert "ENGINE = ReplicatedReplacingMergeTree(v)" in below
    assert "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800" in below
    assert on_top == (
        "CREATE OR REPLACE TABLE {{database}}.t AS {{database}}.t_local"
        " ENGINE = Distributed('c', {{database}}, t_local, cityHash64(cluster, user, client_id))"
    )


def test_table_without_client_columns_is_on_the_first_shard() -> None:
    _, on_top = on_cluster("CREATE TABLE IF NOT EXISTS {{database}}.t (`v` UInt8)\nENGINE = MergeTree ORDER BY v")
    assert on_top.endswith("Distributed('c', {{database}}, t_local, 0)")


def test_materialized_view_reads_and_writes_local_tables() -> None:
    create = "CREATE MATERIALIZED VIEW IF NOT EXISTS {{database}}.f "
    feed = create + "TO {{database}}.t AS SELECT * FROM {{database}}.t"
    assert on_cluster(TABLE + OWN, feed)[-1] == (
        create + "TO {{database}}.t_local AS SELECT * FROM {{database}}.t_local"
    )


@pytest.mark.parametrize(
    ("view", "added"),
    [
        ("SELECT * FROM {{database}}.t", ""),
        (
            "SELECT * FROM {{database}}.t JOIN {{database}}.t AS o USING user",
            "\nSETTINGS distributed_product_mode = 'local'",
        ),
        ("SELECT * FROM {{database}}.t JOIN {{database}}.w USING v", "\nSETTINGS distributed_product_mode = 'global'"),
        (
            "SELECT 1 WHERE v IN (SELECT v FROM {{database}}.t)\nSETTINGS final = 1",
            ", distributed_product_mode = 'local'",
        ),
    ],
)
def test_joins_use_local_or_global_product_mode(view: str, added: str) -> None:
    windows = "CREATE TABLE IF NOT EXISTS {{database}}.w (`v` UInt8)\nENGINE = MergeTree ORDER BY v"
    create = "CREATE VIEW IF NOT EXISTS {{database}}.v AS " + view
    assert on_cluster(TABLE + OWN, windows, create)[-1] == create + added


def test_added_column_reaches_both_tables() -> None:
    changed = "ALTER TABLE {{database}}.t ADD COLUMN IF NOT EXISTS `x` UInt8"
    below, on_top = on_cluster(TABLE + OWN, changed)[2:]
    assert below == changed.replace(".t ", ".t_local ")
    assert on_top.startswith("CREATE OR REPLACE TABLE {{database}}.t AS {{database}}.t_local ENGINE = Distributed(")


def test_dropped_table_goes_with_the_one_below() -> None:
    assert on_cluster(TABLE + OWN, "DROP TABLE IF EXISTS {{database}}.t")[2:] == (
        "DROP TABLE IF EXISTS {{database}}.t SYNC",
        "DROP TABLE IF EXISTS {{database}}.t_local SYNC",
    )


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE {{database}}.points",
        "RENAME TABLE {{database}}.t TO {{database}}.u",
        "CREATE DICTIONARY {{database}}.d (a String) PRIMARY KEY a",
        "CREATE TABLE IF NOT EXISTS {{database}}.m (`a` String) ENGINE = Memory",
        "CREATE TABLE {{database}}.t (`a` String)\nENGINE = MergeTree ORDER BY a",
    ],
)
def test_statement_without_a_rule_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match="no rule for a cluster"):
        on_cluster(statement)


def test_cluster_name_is_quoted_as_a_literal() -> None:
    assert quoted("it's \\ here") == "'it\\'s \\\\ here'"


def test_replicated_database_of_one_shard_has_replicated_engines_and_no_table_on_top() -> None:
    for migration in schema.migrations(SCHEMA_VALUES):
        for statement in map(replicated, migration.statements):
            assert "non_replicated" not in statement
            assert not re.search(r"^ENGINE = (?!Replicated)\w*MergeTree", statement, re.MULTILINE), statement
            assert "Distributed" not in statement
    assert replicated(TABLE + OWN).startswith(TABLE + "ENGINE = ReplicatedReplacingMergeTree(v)")
