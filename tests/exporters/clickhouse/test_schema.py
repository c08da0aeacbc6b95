"""The SQL files as migrations, also rendered for a cluster; promised columns, tokens, granules."""

import re
import time
from pathlib import Path

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.cluster import ClusterSchema, quoted, replicated, with_windows
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, RunningClickHouse

IDENTITY = ["cluster", "principal", "client_id", "client_instance_id"]

# Columns promised to users in surface.md: new columns may be added, none may be removed.
PROMISED = {
    "client_metrics": [
        *IDENTITY, "metric", "ts", "series_id", "value", "int_value", "kind", "temporality", "monotonic", "flags",
        "interval_ms", "unit", "software_name", "software_version", "source_address", "broker_id", "attributes",
        "resource", "received_at",
    ],
    "client_metrics_1h": [
        *IDENTITY, "metric", "bucket", "series_id", "temporality", "min", "max", "sum", "count", "last",
    ],
    "client_histograms": [
        *IDENTITY, "metric", "ts", "series_id", "kind", "temporality", "flags", "interval_ms", "unit", "count", "sum",
        "min", "max", "bounds", "bucket_counts", "scale", "zero_count", "zero_threshold", "pos_offset", "pos_counts",
        "neg_offset", "neg_counts", "quantiles", "attributes", "resource", "received_at",
    ],
    "pushes": [
        *IDENTITY, "received_at", "push_id", "transport", "subscription_id", "compression", "terminating", "bytes",
        "uncompressed_bytes", "points", "error_code", "broker_id", "source_address", "software_name",
        "software_version",
    ],
    "client_instances": [
        *IDENTITY, "software_name", "software_version", "source_address", "first_seen", "last_seen", "terminated",
        "pushes", "points",
    ],
    "client_software": [
        "cluster", "software_name", "software_version", "library", "library_version", "instances", "last_seen",
        "known_issue",
    ],
    "quota_limits": ["cluster", "user", "client_id", "ip", "quota_key", "valid_from", "value", "observed_at"],
    "quota_usage": [
        "cluster", "quota_key", "ts", "user", "client_id", "ip", "broker_id", "bytes", "rate", "throttle_ms",
        "throttled_requests", "source", "received_at",
    ],
    "quota_utilization": [
        "cluster", "quota_key", "window_start", "window_s", "user", "client_id", "matched_entity", "limit",
        "usage_p95", "usage_max", "utilization", "throttle_ms_max", "throttled_s",
        "client_throttle_ms_max", "instances", "eta_s", "level", "run_id", "run_version", "broker_id", "usage",
        "group_usage", "reason", "software_name", "software_version", "shared_with",
    ],
    "job_runs": [
        "job", "run_id", "run_version", "window_from", "window_to", "status", "rows_in", "rows_out", "started_at",
        "finished_at", "error", "stats", "updated_at",
    ],
}  # fmt: skip

DEDUPLICATED = ["points", "series", *(table for table in PROMISED if table != "client_metrics")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A schema of two files, and two migrations that change it."""
    files = {
        "schema/1_first.sql": "-- why\nCREATE TABLE IF NOT EXISTS {{database}}.a (v Float64 DEFAULT {{most}});\n",
        "schema/2_second.sql": "CREATE VIEW IF NOT EXISTS {{database}}.b AS SELECT * FROM {{database}}.a;\n",
        "migrations/0003_more.sql": "ALTER TABLE {{database}}.a ADD COLUMN IF NOT EXISTS y UInt8;\n",
        "migrations/0002_less.sql": "ALTER TABLE {{database}}.a ADD COLUMN IF NOT EXISTS x UInt8;\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_schema_is_the_first_migration_and_others_follow_by_number(directory: Path) -> None:
    all_migrations = schema.migrations({"most": 0.5}, directory)
    assert [(migration.version, migration.name) for migration in all_migrations] == [
        (1, "schema"),
        (2, "less"),
        (3, "more"),
    ]
    assert all_migrations[0].statements == (
        "CREATE TABLE IF NOT EXISTS {{database}}.a (v Float64 DEFAULT 0.5)",
        "CREATE VIEW IF NOT EXISTS {{database}}.b AS SELECT * FROM {{database}}.a",
    )


def test_value_that_nobody_gave_is_an_error(directory: Path) -> None:
    with pytest.raises(KeyError, match="most"):
        schema.migrations({}, directory)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("0002_again.sql", "duplicate number"),
        ("0001_schema.sql", "duplicate number"),
        ("more.sql", r"its name is not NNNN_name\.sql"),
    ],
)
def test_file_that_has_no_place_is_an_error(directory: Path, name: str, fault: str) -> None:
    (directory / "migrations" / name).write_text("SELECT 1;\n")
    with pytest.raises(ValueError, match=fault):
        schema.migrations({"most": 1}, directory)


def test_expiring_tables_are_those_with_a_ttl() -> None:
    expiring = schema.expiring_tables()
    assert {"points", "quota_usage", "points_1h", "throttle_forecast"} <= set(expiring)
    assert not {"quota_limits", "job_runs", "schema_migrations"} & set(expiring)


def test_applied_migrations_are_not_pending(directory: Path) -> None:
    every = schema.migrations({"most": 1}, directory)
    assert schema.pending(every, {}) == every
    assert schema.pending(every, {1: every[0].checksum}) == every[1:]
    assert schema.pending(every, {migration.version: migration.checksum for migration in every}) == []


def test_comment_may_change_after_it_was_applied(directory: Path) -> None:
    before = schema.migrations({"most": 1}, directory)[0]
    file = directory / "schema" / "1_first.sql"
    file.write_text(file.read_text().replace("-- why", "-- because"))
    assert schema.migrations({"most": 1}, directory)[0] == before


def test_migration_with_other_statements_or_values_is_named(directory: Path) -> None:
    applied = {migration.version: migration.checksum for migration in schema.migrations({"most": 1}, directory)}
    (directory / "migrations" / "0003_more.sql").write_text("SELECT 2;\n")
    with pytest.raises(schema.ChangedMigrationError, match=r"another release: 0003_more had other"):
        schema.pending(schema.migrations({"most": 1}, directory), applied)
    with pytest.raises(schema.ChangedMigrationError, match=r"another release: 0001_schema, 0003_more had other"):
        schema.pending(schema.migrations({"most": 2}, directory), applied)


def test_statements_end_at_a_line_ending_semicolon() -> None:
    text = "-- a; comment\nCREATE TABLE a (b String DEFAULT ';x')\nENGINE = Memory;  \n\nSELECT 1;\n-- end\n"
    assert schema.statements(text) == ("CREATE TABLE a (b String DEFAULT ';x')\nENGINE = Memory", "SELECT 1")


def test_every_statement_is_idempotent() -> None:
    for migration in schema.migrations(SCHEMA_VALUES):
        for statement in migration.statements:
            assert re.search(r"IF (NOT )?EXISTS", statement) or statement.startswith("ALTER"), statement


def _columns(store: QueriedStore) -> dict[str, list[str]]:
    rows = store.query("SELECT table, groupArray(name) FROM system.columns WHERE database = 'headroom' GROUP BY table")
    return {str(table): list(names) for table, names in rows}


@pytest.mark.clickhouse
def test_promised_columns_exist(clickhouse: RunningClickHouse) -> None:
    columns = _columns(clickhouse.store)
    for table, promised in PROMISED.items():
        assert set(promised) <= set(columns[table]), table


@pytest.mark.clickhouse
def test_every_written_table_deduplicates_by_token(clickhouse: RunningClickHouse) -> None:
    # Rollups replace their rows instead of adding to them.
    replaced = {"points_1h", "schema_migrations", "usage_1m", "usage_1m_windows"}
    rows = clickhouse.store.query(
        "SELECT name FROM system.tables WHERE database = 'headroom' AND engine LIKE '%MergeTree'"
        " AND create_table_query NOT LIKE '%non_replicated_deduplication_window = 10000%'"
    )
    assert {str(name) for (name,) in rows} <= replaced
    assert set(DEDUPLICATED) <= set(_columns(clickhouse.store))


@pytest.mark.clickhouse
def test_time_range_prunes_granules_by_hour(clickhouse: RunningClickHouse) -> None:
    """A query for ten minutes out of eight hours of one metric."""
    store = clickhouse.store
    store.query("CREATE TABLE headroom.pruned AS headroom.points")
    day_s = int(time.time()) // 86_400 * 86_400  # the same in both statements, at midnight too
    store.query(
        "INSERT INTO headroom.pruned (cluster, metric, ts, series_id)"
        f" SELECT 'c', 'm', toDateTime({day_s}, 'UTC') + number % 28800, number FROM numbers(400000)"
    )
    plan = store.query(
        "EXPLAIN indexes = 1 SELECT sum(value) FROM headroom.pruned WHERE cluster = 'c' AND metric = 'm'"
        f" AND ts >= toDateTime({day_s + 3600}, 'UTC') AND ts < toDateTime({day_s + 4200}, 'UTC')"
    )
    store.query("DROP TABLE headroom.pruned")
    granules = [str(line).strip() for (line,) in plan if "Granules" in str(line)][-1]
    read, _, total = granules.removeprefix("Granules: ").partition("/")
    assert int(total) > 40
    assert int(read) <= int(total) // 6


TABLE = (
    "CREATE TABLE IF NOT EXISTS {{database}}.t"
    "\n(\n    `cluster` String,\n    `user` String,\n    `client_id` String\n)\n"
)
WINDOWS = "CREATE TABLE IF NOT EXISTS {{database}}.w (`v` UInt8)\nENGINE = MergeTree ORDER BY v"
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


FEED = "CREATE MATERIALIZED VIEW IF NOT EXISTS {{database}}.f TO {{database}}."
VIEW = "CREATE VIEW IF NOT EXISTS {{database}}.v AS SELECT "
JOINED = f"{VIEW}* FROM {{{{database}}}}.t JOIN {{{{database}}}}.t AS o USING user"
JOINED_TO_ALL = f"{VIEW}* FROM {{{{database}}}}.t JOIN {{{{database}}}}.w USING v"
DROP = "DROP TABLE IF EXISTS {{database}}.t"
SET = f"{VIEW}1 WHERE v IN (SELECT v FROM {{{{database}}}}.t)\nSETTINGS final = 1"


@pytest.mark.parametrize(
    ("statement", "last"),
    [
        (WINDOWS, "ENGINE = Distributed('c', {{database}}, w_local, 0)"),
        (f"{FEED}t AS SELECT * FROM {{{{database}}}}.t", f"{FEED}t_local AS SELECT * FROM {{{{database}}}}.t_local"),
        (f"{VIEW}* FROM {{{{database}}}}.t", f"{VIEW}* FROM {{{{database}}}}.t"),
        (JOINED, f"{JOINED}\nSETTINGS distributed_product_mode = 'local'"),
        (JOINED_TO_ALL, f"{JOINED_TO_ALL}\nSETTINGS distributed_product_mode = 'global'"),
        (SET, f"{SET}, distributed_product_mode = 'local'"),
        (DROP, f"{DROP} SYNC; {DROP}_local SYNC"),
    ],
    ids=[
        "a table without client columns is on the first shard",
        "a materialized view reads and writes local tables",
        "a view names the tables on top",
        "tables that are sharded alike are joined on each shard",
        "others are sent to all shards",
        "an IN is a join too, and its settings stay",
        "a dropped table goes with the one below",
    ],
)
def test_rendered_statement_ends_with(statement: str, last: str) -> None:
    assert "; ".join(on_cluster(TABLE + OWN, WINDOWS, statement)).endswith(last)


def test_added_column_reaches_both_tables() -> None:
    changed = "ALTER TABLE {{database}}.t ADD COLUMN IF NOT EXISTS `x` UInt8"
    below, on_top = on_cluster(TABLE + OWN, changed)[2:]
    assert below == changed.replace(".t ", ".t_local ")
    assert on_top.startswith("CREATE OR REPLACE TABLE {{database}}.t AS {{database}}.t_local ENGINE = Distributed(")


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


def test_tables_that_share_their_rows_know_a_batch_again_for_a_week() -> None:
    plain = "MergeTree ORDER BY v SETTINGS non_replicated_deduplication_window = 10000"
    shared = f"Shared{plain}, index_granularity = 8192"
    window = "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
    tables = {"a": plain, "b": shared, "c": f"{shared}, {window}", "d": "SharedMergeTree ORDER BY v"}
    assert list(with_windows(tables)) == [f"ALTER TABLE {{{{database}}}}.b MODIFY SETTING {window}"]
