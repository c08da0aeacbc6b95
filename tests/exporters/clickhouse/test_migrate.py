"""Migrations: interrupted, by several processes at once, over a database of another release or changed by hand."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.migrate import schema_lock
from exporters.clickhouse.schema import filled
from exporters.clickhouse.store import TransientWriteError
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import LaunchedServer, QueriedStore, connected, launched
from tests.kit.points import points

pytestmark = pytest.mark.clickhouse

DATABASE = {"database": "headroom"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    with launched(LaunchedServer(ServerSettings(tmp_path_factory.mktemp("migrate")))) as running:
        yield running


@pytest.fixture
def endpoint(server: LaunchedServer) -> Endpoint:
    """Of a server without a database."""
    with connected(server.writer, database=ANY_DATABASE) as client:
        client.command("DROP DATABASE IF EXISTS headroom SYNC")
    return server.writer


@pytest.fixture
def store(endpoint: Endpoint) -> Iterator[QueriedStore]:
    opened = QueriedStore(endpoint)
    yield opened
    opened.close()


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85, 0.99])
def test_interrupted_schema_resumes(store: QueriedStore, share: float) -> None:
    """The statements run one by one up to a place in the middle, as when the worker is killed there."""
    steps = [
        step for migration in schema.migrations(SCHEMA_VALUES) for step in (*migration.statements, migration.record())
    ]
    for statement in ("CREATE DATABASE headroom", schema.RECORD_TABLE, *steps[: int(len(steps) * share)]):
        store.query(filled(statement, DATABASE))
    store.migrate(SCHEMA_VALUES)
    store.insert("points", points("new", 10), token="new")
    assert store.query("SELECT count() FROM headroom.client_metrics WHERE cluster = 'new'") == [(10,)]
    store.query("SELECT * FROM headroom.headroom_now")
    every = {migration.version: migration.checksum for migration in schema.migrations(SCHEMA_VALUES)}
    assert dict(map(tuple, store.query(filled(schema.APPLIED, DATABASE)))) == every


def test_database_of_another_release_is_refused(store: QueriedStore) -> None:
    store.migrate(SCHEMA_VALUES)
    store.query("INSERT INTO headroom.schema_migrations (version, name, checksum) VALUES (1, 'other', 'f00')")
    with pytest.raises(TransientWriteError, match=r"made by another release: 0001_schema had other statements"):
        store.migrate(SCHEMA_VALUES)


def test_view_or_table_that_cannot_be_read_is_named(store: QueriedStore) -> None:
    """Somebody changed the database by hand; the schema counts as applied."""
    store.migrate(SCHEMA_VALUES)
    store.check_reading(SCHEMA_VALUES)
    store.query("ALTER TABLE headroom.quota_limits RENAME COLUMN value TO amount")
    with pytest.raises(TransientWriteError, match=r"cannot read view \w+: .*value"):
        store.check_reading(SCHEMA_VALUES)
    store.query("DROP TABLE headroom.job_runs")
    with pytest.raises(TransientWriteError, match=r"cannot read the tables: .*job_runs"):
        store.check_reading(SCHEMA_VALUES)


def test_concurrent_processes_migrate_a_new_server_once(endpoint: Endpoint) -> None:
    stores = [QueriedStore(endpoint) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(store.migrate, SCHEMA_VALUES) for store in stores]:
            done.result()
    applied = stores[0].query(
        "SELECT version, count() FROM headroom.schema_migrations GROUP BY version ORDER BY version"
    )
    assert applied == [(migration.version, 1) for migration in schema.migrations(SCHEMA_VALUES)]
    assert stores[0].query("SELECT count() FROM system.tables WHERE name = 'schema_lock'") == [(0,)]
    for store in stores:
        store.close()


def test_lock_whose_holder_died_is_taken_over(endpoint: Endpoint, store: QueriedStore) -> None:
    store.migrate(SCHEMA_VALUES)
    alive = ClickHouse((endpoint,))
    held = "SELECT count() AS found FROM system.tables WHERE name = 'schema_lock'"
    store.query("CREATE TABLE headroom.schema_lock (`holder` String) ENGINE = Memory")
    with schema_lock(alive, "headroom", abandoned_s=1.0):
        assert alive.rows(held) == [{"found": 1}]
    assert alive.rows(held) == [{"found": 0}]
