"""A database of the first release (migrations 1 to 6, without checksums) is upgraded with its rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clickhouse_connect.driver.client import Client

from exporters.clickhouse import schema
from exporters.clickhouse.connection import ANY_DATABASE, WRITER, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer
from exporters.clickhouse.store import Store, UnsupportedServerError
from telemetry.ingest.rollups import ROLL_UP, Slice
from tests.exporters.clickhouse.test_store import NOW_MS, points

pytestmark = pytest.mark.clickhouse

NEWEST_RELEASED = 6
OLD_RECORD_TABLE = (
    "CREATE TABLE IF NOT EXISTS headroom.schema_migrations"
    " (`version` UInt32, `name` String, `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3))"
    " ENGINE = ReplacingMergeTree(applied_at) ORDER BY version"
)
ROWS = {  # as that release wrote them, on the day of `points`
    "points": "(cluster, metric, ts, principal, client_id, series_id, value)"
    " VALUES ('old', 'm', '2100-01-01 00:00:00.000', 'ANONYMOUS', 'app', 7, 1.5)",
    "series": "(series_id, cluster, metric, kind, unit, last_seen) VALUES (7, 'old', 'm', 'gauge', 'ms', now())",
    "quota_limits": "(cluster, user, quota_key, valid_from, value) VALUES ('old', 'u', 'producer_byte_rate', now(), 9)",
    "quota_usage": "(cluster, quota_key, ts, user, client_id, broker_id, rate, source)"
    " VALUES ('old', 'producer_byte_rate', now(), 'u', 'c', 1, 5, 'gateway')",
    "client_instances": "(cluster, client_id, pushes, first_seen, last_seen) VALUES ('old', 'c', 3, now(), now())",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    running = ManagedServer(ServerSettings(tmp_path_factory.mktemp("upgrade")))
    try:
        running.launch()
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture
def released(server: ManagedServer) -> Iterator[Client]:
    """A connection to a server whose database is that of the first release, with a row in each table."""
    with _endpoint(server).connect(database=ANY_DATABASE) as client:
        client.command("DROP DATABASE IF EXISTS headroom SYNC")
        for statement in (schema.CREATE_DATABASE.format(database="headroom"), OLD_RECORD_TABLE):
            client.command(statement)
        for migration in schema.migrations()[:NEWEST_RELEASED]:
            for statement in migration.statements:
                client.command(statement)
            values = f"({migration.version}, '{migration.name}')"
            client.command(f"INSERT INTO headroom.schema_migrations (version, name) VALUES {values}")
        for table, rows in ROWS.items():
            client.command(f"INSERT INTO headroom.{table} {rows}")
        yield client


def _endpoint(server: ManagedServer) -> Endpoint:
    return Endpoint("http", server.host, server.http_port, WRITER, server.password)


def _check_upgraded(store: Store) -> None:
    """Asserts that each old row exists once and that the same tables accept new rows."""
    for table in ROWS:
        assert store.query(f"SELECT count() FROM headroom.{table} FINAL WHERE cluster = 'old'") == [(1,)], table
    store.insert("points", points("old", 10), token="new")
    found = store.query("SELECT count(), countIf(unit = 'ms') FROM headroom.client_metrics WHERE cluster = 'old'")
    assert [tuple(row) for row in found] == [(11, 1)]
    store.command(ROLL_UP, Slice(NOW_MS // 3_600_000, 0, 1).parameters())
    assert store.query("SELECT sum(points) FROM headroom.client_metrics_1h WHERE cluster = 'old'") == [(11,)]
    assert store.query("SELECT interval_ms, limit_known FROM headroom.quota_usage WHERE cluster = 'old'") == [(0, 0)]
    store.query("SELECT * FROM headroom.headroom_now")


def test_rows_of_the_first_release_survive_the_upgrade(server: ManagedServer, released: Client) -> None:
    store = Store(_endpoint(server))
    store.migrate()
    _check_upgraded(store)
    recorded = {int(version): checksum for version, checksum in store.query(schema.APPLIED)}
    newer = [migration for migration in schema.migrations() if migration.version > NEWEST_RELEASED]
    assert {version: found for version, found in recorded.items() if found} == {m.version: m.checksum for m in newer}
    store.close()


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85, 0.99])
def test_interrupted_upgrade_resumes(server: ManagedServer, released: Client, share: float) -> None:
    """The statements run one by one up to a place in the middle, as when the worker is killed there."""
    for statement in schema.RECORD_TABLE:
        released.command(statement)
    newer = [migration for migration in schema.migrations() if migration.version > NEWEST_RELEASED]
    steps = [step for migration in newer for step in (*migration.statements, migration.record())]
    for statement in steps[: int(len(steps) * share)]:
        released.command(statement)
    store = Store(_endpoint(server))
    store.migrate()
    _check_upgraded(store)
    store.close()


def test_database_of_another_release_is_refused(server: ManagedServer, released: Client) -> None:
    Store(_endpoint(server)).migrate()
    released.command("INSERT INTO headroom.schema_migrations (version, name, checksum) VALUES (7, 'other', 'f00')")
    with pytest.raises(UnsupportedServerError, match=r"made by another release: 0007_\w+ had other statements"):
        Store(_endpoint(server)).migrate()
