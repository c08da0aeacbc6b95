from __future__ import annotations

import re
import time

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.store import Store
from tests.kit.clickhouse import RunningClickHouse

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
        "usage_avg", "usage_p95", "usage_max", "utilization", "throttle_ms_max", "throttled_s",
        "client_throttle_ms_max", "instances", "eta_s", "level", "run_id", "run_version", "broker_id", "usage",
        "group_usage", "reason", "software_name", "software_version", "shared_with",
    ],
    "job_runs": [
        "job", "run_id", "run_version", "window_from", "window_to", "status", "rows_in", "rows_out", "started_at",
        "finished_at", "error", "stats", "updated_at",
    ],
}  # fmt: skip

# Of the statements at 37ecc2d: a database that has them is upgraded by the files after them.
RELEASED = {
    1: "7910d50bf74e253d601b43a3b81f588bb5eda1f5c48b36ae60793602e032c5d5",
    2: "9b09b5395f90055f9da3f8ddec9aeac8a124de859eef44fbe6a5e055f3f3aa01",
    3: "16012f553ab96eaf0065e60c84e383e5f0b91b1479fe9b956208c6339523eb04",
    4: "2f86198435c4a443a24bd99d630f804a2759bca8645d21baf5d2f735a6b48a2f",
    5: "890a9f0d398857aa75ac7135171f9ac9def9089c6594b3f8d31318e157864654",
    6: "db360ae6251616f9a361d394974ade3a88032300c7c2e95eb987d12613a94a08",
}

DEDUPLICATED = ["points", "series", *(table for table in PROMISED if table != "client_metrics")]


def test_migrations_are_ordered_with_unique_names() -> None:
    found = schema.migrations()
    versions = [migration.version for migration in found]
    assert versions == sorted(set(versions))
    assert len({migration.name for migration in found}) == len(found)


def test_expiring_tables_are_those_with_a_ttl() -> None:
    expiring = schema.expiring_tables()
    assert {"points", "quota_usage", "points_1h", "throttle_forecast"} <= set(expiring)
    assert not {"quota_limits", "job_runs", "schema_migrations"} & set(expiring)


def test_applied_migrations_are_not_pending() -> None:
    every = schema.migrations()
    assert schema.pending({}) == every
    assert schema.pending({1: ""}) == every[1:]
    assert schema.pending({migration.version: migration.checksum for migration in every}) == []


def test_migration_with_changed_statements_is_named() -> None:
    with pytest.raises(schema.ChangedMigrationError, match=r"another release: 0002_clients, 0003_quotas had other"):
        schema.pending({1: "", 2: "0" * 64, 3: "1" * 64})


def test_released_migrations_are_unchanged() -> None:
    released = {migration.version: migration.checksum for migration in schema.migrations() if migration.version <= 6}
    assert released == RELEASED


def test_statements_end_at_a_line_ending_semicolon() -> None:
    text = "-- a; comment\nCREATE TABLE a (b String DEFAULT ';x')\nENGINE = Memory;  \n\nSELECT 1;\n-- end\n"
    assert schema.statements(text) == ("CREATE TABLE a (b String DEFAULT ';x')\nENGINE = Memory", "SELECT 1")


def test_every_statement_is_idempotent() -> None:
    for migration in schema.migrations():
        for statement in migration.statements:
            if "headroom.series_by_metric" not in statement:  # the series test below runs these in all orders
                assert re.search(r"IF (NOT )?EXISTS", statement) or statement.startswith("ALTER"), statement


def _apply_everything_again(store: Store) -> int:
    store.migrate()
    for migration in schema.migrations():
        for statement in migration.statements:
            store.query(statement)
    return int(store.query("SELECT count() FROM headroom.schema_migrations FINAL")[0][0])


@pytest.mark.clickhouse
def test_schema_can_be_applied_twice(clickhouse: RunningClickHouse) -> None:
    assert _apply_everything_again(clickhouse.store) == len(schema.migrations())


def _columns(store: Store) -> dict[str, list[str]]:
    rows = store.query("SELECT table, groupArray(name) FROM system.columns WHERE database = 'headroom' GROUP BY table")
    return {str(table): list(names) for table, names in rows}


@pytest.mark.clickhouse
def test_promised_columns_exist(clickhouse: RunningClickHouse) -> None:
    found = _columns(clickhouse.store)
    for table, promised in PROMISED.items():
        assert set(promised) <= set(found[table]), table


def _without_deduplication(store: Store) -> list[str]:
    rows = store.query(
        "SELECT name FROM system.tables WHERE database = 'headroom' AND engine LIKE '%MergeTree'"
        " AND create_table_query NOT LIKE '%non_replicated_deduplication_window = 10000%'"
    )
    return [str(name) for (name,) in rows]


@pytest.mark.clickhouse
def test_every_written_table_deduplicates_by_token(clickhouse: RunningClickHouse) -> None:
    # Rollups replace their rows instead of adding to them.
    replaced = {"points_1h", "schema_migrations", "usage_1m", "usage_1m_windows"}
    assert set(_without_deduplication(clickhouse.store)) <= replaced
    assert set(DEDUPLICATED) <= set(_columns(clickhouse.store))


def _granules_of_an_hour(store: Store) -> tuple[int, int]:
    """(read, all) granules of a query for ten minutes out of eight hours of one metric."""
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
    return int(read), int(total)


@pytest.mark.clickhouse
def test_time_range_prunes_granules_by_hour(clickhouse: RunningClickHouse) -> None:
    read, total = _granules_of_an_hour(clickhouse.store)
    assert total > 40
    assert read <= total // 6


@pytest.mark.clickhouse
def test_series_rebuild_resumes_after_a_crash_at_any_statement(clickhouse: RunningClickHouse) -> None:
    (migration,) = [found for found in schema.migrations() if found.version == 19]
    store = clickhouse.store
    store.query("INSERT INTO headroom.series (series_id, cluster, metric, last_seen) SELECT 7, 'crash', 'm', now()")
    rebuild = [place for place, text in enumerate(migration.statements) if "series_by_metric" in text]
    for crash_after in rebuild:
        for statement in migration.statements[: crash_after + 1]:
            store.query(statement)
        for statement in migration.statements:
            store.query(statement)
        assert store.query("SELECT count() FROM headroom.series FINAL WHERE cluster = 'crash'") == [(1,)]
