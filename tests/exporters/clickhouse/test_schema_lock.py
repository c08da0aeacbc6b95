"""exporters/clickhouse/schema_lock.py: processes that start at once on one new server, and a lock whose holder died."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exporters.clickhouse import schema
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.schema_lock import schema_lock
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import LaunchedServer, QueriedStore, RunningClickHouse, connected

pytestmark = pytest.mark.clickhouse


def test_concurrent_processes_migrate_a_new_server_once(tmp_path: Path) -> None:
    server = LaunchedServer(ServerSettings(tmp_path))
    try:
        server.launch()
        server.wait_ready()
        endpoint = Endpoint("http", server.host, server.http_port, WRITER, server.password)
        stores = [QueriedStore(endpoint) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(store.migrate, SCHEMA_VALUES) for store in stores]:
                done.result()
        applied = stores[0].query(
            "SELECT version, count() FROM headroom.schema_migrations GROUP BY version ORDER BY version"
        )
        assert [tuple(row) for row in applied] == [
            (migration.version, 1) for migration in schema.migrations(SCHEMA_VALUES)
        ]
        assert stores[0].query("SELECT count() FROM system.tables WHERE name = 'schema_lock'") == [(0,)]
        for store in stores:
            store.close()
    finally:
        server.stop()


def test_abandoned_lock_is_taken_over(clickhouse: RunningClickHouse) -> None:
    alive = ClickHouse((clickhouse.writer,))
    held = "SELECT count() AS found FROM system.tables WHERE name = 'schema_lock'"
    with connected(clickhouse.writer) as dead:
        dead.command("CREATE TABLE headroom.schema_lock (`holder` String) ENGINE = Memory")
        with schema_lock(alive, "headroom", abandoned_s=1.0):
            assert alive.rows(held) == [{"found": 1}]
        assert alive.rows(held) == [{"found": 0}]
