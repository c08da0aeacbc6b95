"""Two replicas of one shard: deduplication by token, an unavailable node, roles, retention."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from exporters.clickhouse import schema
from exporters.clickhouse.connection import PASSWORD
from exporters.clickhouse.store import TransientWriteError
from exporters.model import QuotaLimit, UsageSample
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from telemetry.ingest.arrow_tables import limits_table, usage_table
from telemetry.ingest.rollups import ROLL_UP, Slice
from tests.kit.clickhouse import QueriedStore, connected
from tests.kit.clickhouse_cluster import NAME, OTHER_DATABASE, RunningCluster, running_cluster, zookeeper_libs
from tests.kit.points import points
from tests.kit.serving import eventually

ACTIVE = "SELECT active_replicas FROM system.replicas WHERE table = 'points_local'"

pytestmark = [pytest.mark.release, pytest.mark.clickhouse, pytest.mark.java]


@pytest.fixture(scope="module")
def cluster(
    java: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    libs = zookeeper_libs(java, request.config.rootpath / ".cache")
    with running_cluster(java, libs, tmp_path_factory.mktemp("cluster"), shards=1, replicas=2) as running:
        yield running


@pytest.fixture(scope="module")
def store(cluster: RunningCluster) -> Iterator[QueriedStore]:
    opened = cluster.store()
    opened.migrate(SCHEMA_VALUES)
    yield opened
    opened.close()


def answers(cluster: RunningCluster, sql: str) -> list[Any]:
    """The rows that each node returns once the nodes are in sync."""
    cluster.wait_in_sync()
    return unsynced_answers(cluster, sql)


def unsynced_answers(cluster: RunningCluster, sql: str) -> list[Any]:
    results = []
    for node in cluster.nodes:
        with connected(node.endpoint("reader")) as client:
            results.append(client.query(sql).result_rows)
    return results


def test_second_migration_changes_nothing(cluster: RunningCluster, store: QueriedStore) -> None:
    again = cluster.store()
    again.migrate(SCHEMA_VALUES)
    again.check()
    again.close()
    applied = "SELECT count() FROM headroom.schema_migrations FINAL"
    assert answers(cluster, applied) == [[(len(schema.migrations(SCHEMA_VALUES)),)]] * 2
    engines = "SELECT engine, count() FROM system.tables WHERE database = 'headroom' GROUP BY engine ORDER BY engine"
    first, second = answers(cluster, engines)
    assert first == second
    kinds = dict(first)
    assert kinds["Distributed"] == sum(count for engine, count in first if engine.startswith("Replicated"))


def test_database_of_another_name_holds_all_tables(cluster: RunningCluster, store: QueriedStore) -> None:
    other = cluster.store(OTHER_DATABASE)
    other.migrate(SCHEMA_VALUES)
    other.check()
    other.insert("points", points("other", 30), token="other")
    count = f"SELECT count(), sum(value) FROM {OTHER_DATABASE}.points WHERE cluster = 'other'"
    assert answers(cluster, count) == [[(30, 435.0)]] * 2
    assert answers(cluster, "SELECT count() FROM headroom.points WHERE cluster = 'other'") == [[(0,)]] * 2
    tables = "SELECT name FROM system.tables WHERE database = '{}' ORDER BY name"
    named, ours = (answers(cluster, tables.format(name)) for name in (OTHER_DATABASE, "headroom"))
    assert named == ours
    ours_in_it = f"database = '{OTHER_DATABASE}' AND create_table_query LIKE '%headroom.%'"
    assert answers(cluster, f"SELECT count() FROM system.tables WHERE {ours_in_it}") == [[(0,)]] * 2
    eventually(lambda: other.replicas_agree("points"), bool)
    other.close()
    with cluster.nodes[0].admin() as client:  # another test takes a node's disk away
        client.command(f"DROP DATABASE {OTHER_DATABASE} ON CLUSTER {NAME} SYNC")


def test_store_without_cluster_name_is_refused(cluster: RunningCluster, store: QueriedStore) -> None:
    alone = QueriedStore(cluster.nodes[0].endpoint("writer"))
    with pytest.raises(TransientWriteError, match=r"is that of a cluster: set store\.cluster\.name"):
        alone.migrate(SCHEMA_VALUES)
    alone.close()


def test_repeated_batch_counts_once_on_any_node(cluster: RunningCluster, store: QueriedStore) -> None:
    for node in (*cluster.nodes, *cluster.nodes):
        single = QueriedStore(node.endpoint("writer"), options=store._options)
        single.insert("points", points("once", 1000), token="once")
        single.close()
    assert answers(cluster, "SELECT count() FROM headroom.points WHERE cluster = 'once'") == [[(1000,)]] * 2


def test_inserts_fail_over_to_the_next_node(cluster: RunningCluster, store: QueriedStore) -> None:
    first = cluster.nodes[0]
    writer = cluster.store()
    writer.insert("points", points("away", 10), token="away-1")
    first.kill()
    try:
        writer.insert("points", points("away-2", 10), token="away-2")
        assert not writer.replicas_agree("points")
    finally:
        first.start()
    writer.close()
    sql = "SELECT cluster, count() FROM headroom.points WHERE cluster LIKE 'away%' GROUP BY cluster ORDER BY cluster"
    assert answers(cluster, sql) == [[("away", 10), ("away-2", 10)]] * 2


def test_rollups_and_views_are_equal_on_both_nodes(cluster: RunningCluster, store: QueriedStore) -> None:
    store.insert("points", points("rolled", 100), token="rolled")
    [(ts,)] = store.query("SELECT min(toUnixTimestamp(ts)) FROM headroom.points WHERE cluster = 'rolled'")
    store.command(ROLL_UP, Slice(int(ts) // 3600, 0, 1).parameters())
    sql = "SELECT sum(points) FROM headroom.client_metrics_1h WHERE cluster = 'rolled'"
    assert answers(cluster, sql) == [[(100,)]] * 2
    views = (
        "SELECT name FROM system.tables WHERE database = 'headroom' AND engine = 'View' AND name NOT LIKE '%_minute'"
    )
    for (view,) in store.query(views):
        tries = [unsynced_answers(cluster, f"SELECT count() FROM headroom.{view}") for _ in range(3)]
        assert any(first == second for first, second in tries), view  # a minute may end between the two


def test_quorum_insert_waits_for_both_replicas(cluster: RunningCluster, store: QueriedStore) -> None:
    both = cluster.store(quorum="2")
    both.insert("points", points("quorum", 10), token="quorum")
    assert unsynced_answers(cluster, "SELECT count() FROM headroom.points WHERE cluster = 'quorum'") == [[(10,)]] * 2
    cluster.nodes[1].kill()
    try:
        eventually(lambda: store.query(ACTIVE), lambda active: active == [(1,)])
        with pytest.raises(TransientWriteError):
            both.insert("points", points("quorum-2", 10), token="quorum-2")
    finally:
        cluster.nodes[1].start()
    both.close()


def test_node_with_lost_disk_is_restored_from_its_replica(cluster: RunningCluster, store: QueriedStore) -> None:
    """The procedure of docs/clickhouse.md."""
    store.insert("points", points("kept", 100), token="kept")
    cluster.wait_in_sync()
    first, lost = cluster.nodes
    lost.kill()
    shutil.rmtree(lost.settings.store)
    lost.settings.store.mkdir()
    eventually(lambda: store.query(ACTIVE), lambda active: active == [(1,)])
    with first.admin() as client:
        client.command("SYSTEM DROP DATABASE REPLICA '1|2' FROM DATABASE headroom")
        client.command("SYSTEM DROP REPLICA '2' FROM DATABASE headroom")
    lost.start()
    with lost.admin() as client:
        path = "'/clickhouse/databases/headroom', '{shard}', '{replica}'"
        client.command(f"CREATE DATABASE headroom ENGINE = Replicated({path})")
        client.command("SYSTEM SYNC DATABASE REPLICA headroom")
    assert answers(cluster, "SELECT count() FROM headroom.points_local WHERE cluster = 'kept'") == [[(100,)]] * 2
    first_tables, tables = answers(cluster, "SELECT name FROM system.tables WHERE database = 'headroom' ORDER BY name")
    assert tables == first_tables


def test_retention_is_configurable(cluster: RunningCluster, store: QueriedStore) -> None:
    longer = cluster.store(retention_days={"points": 30, "points_1h": 700})
    longer.migrate(SCHEMA_VALUES)
    longer.close()
    sql = "SELECT engine_full LIKE '%toIntervalDay({})%' FROM system.tables WHERE database = 'headroom' AND name = '{}'"
    for table, days in {"points_local": 30, "points_1h_local": 700, "pushes_local": 14}.items():
        assert answers(cluster, sql.format(days, table)) == [[(1,)]] * 2
    with pytest.raises(TransientWriteError, match="cannot set the retention of job_runs"):
        cluster.store(retention_days={"job_runs": 3}).migrate(SCHEMA_VALUES)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("reader", "INSERT INTO headroom.points (cluster) VALUES ('no')"),
        ("reader", "ALTER TABLE headroom.points_local DELETE WHERE 1"),
        ("reader", "SELECT * FROM system.users"),
        ("reader", "SELECT * FROM url('http://127.0.0.1:1/', 'TSV', 'a String')"),
        ("jobs", "INSERT INTO headroom.points (cluster) VALUES ('no')"),
        ("jobs", "DROP TABLE headroom.job_runs"),
        ("jobs", "ALTER TABLE headroom.quota_utilization_local DELETE WHERE 1"),
        ("jobs", "SELECT * FROM url('http://127.0.0.1:1/', 'TSV', 'a String')"),
        ("jobs", "SELECT * FROM file('/etc/passwd', 'TSV', 'a String')"),
        ("writer", "CREATE DATABASE other"),
        ("writer", "DROP DATABASE headroom"),
        ("writer", "CREATE USER somebody"),
        ("writer", "SELECT * FROM file('/etc/passwd', 'TSV', 'a String')"),
    ],
)
def test_roles_are_denied_unneeded_statements(
    cluster: RunningCluster, store: QueriedStore, role: str, statement: str
) -> None:
    with (
        connected(cluster.nodes[0].endpoint(role)) as client,
        pytest.raises(DatabaseError, match=r"ACCESS_DENIED|READONLY"),
    ):
        client.command(statement)


def test_jobs_role_writes_results_and_drops_staged_partitions(cluster: RunningCluster, store: QueriedStore) -> None:
    with connected(cluster.nodes[1].endpoint("jobs")) as client:
        client.command("INSERT INTO headroom.job_runs (job, run_id) VALUES ('j', generateUUIDv4())")
        client.command("INSERT INTO headroom.quota_utilization_staging (run, client_id) VALUES ('r', 'c')")
        client.command("ALTER TABLE headroom.quota_utilization_staging_local DROP PARTITION 'r'")
        assert client.query("SELECT count() FROM headroom.quota_utilization_staging").result_rows == [(0,)]
        assert client.query("SELECT count() FROM headroom.job_runs WHERE job = 'j'").result_rows == [(1,)]


@pytest.mark.spark
def test_spark_job_results_reach_both_nodes(cluster: RunningCluster, store: QueriedStore) -> None:
    end_ms = time.time_ns() // 1_000_000 // 60_000 * 60_000
    rows = [
        UsageSample(
            "prod", "producer_byte_rate", end_ms - ago * 1000, "alice", f"app-{client}", "", 1, 900, 900.0, 0.0, 0,
            "gateway", "gw", 1000, 1e3, True, "user=alice, client-id=<default>", "alice", f"app-{client}",
        )
        for ago in range(1, 241)
        for client in range(8)
    ]  # fmt: skip
    store.insert("quota_usage", usage_table(rows, end_ms), token="job")
    limit = QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", end_ms - 3_600_000, 1e3)
    store.insert("quota_limits", limits_table([limit], end_ms), token="job")
    jobs = cluster.nodes[1].endpoint("jobs")
    command = [sys.executable, "-m", "headroom", "job", "quota-headroom", "--since", "10m", "--output", "json"]
    environment = {**os.environ, PASSWORD: jobs.password}
    done = subprocess.run(
        [*command, "--url", jobs.url], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    results = (
        "SELECT client_id, min(level), max(level), count() >= 3 FROM headroom.quota_utilization FINAL"
        " GROUP BY client_id ORDER BY client_id"
    )
    assert answers(cluster, results) == [[(f"app-{client}", "warn", "warn", True) for client in range(8)]] * 2
    runs = "SELECT status FROM headroom.job_runs FINAL WHERE job != 'j'"
    assert answers(cluster, runs) == [[("succeeded",)]] * 2


def test_replicated_database_of_one_shard_needs_no_setting(cluster: RunningCluster) -> None:
    """The owner made it; each replica has all rows, and a token counts at both."""
    place = "ENGINE = Replicated('/clickhouse/databases/ops', '{shard}', '{replica}')"
    for node in cluster.nodes:
        with node.admin() as client:
            client.command(f"CREATE DATABASE {OTHER_DATABASE} {place}")
    endpoints = [replace(node.endpoint("writer"), database=OTHER_DATABASE) for node in cluster.nodes]
    stores = [QueriedStore(endpoint) for endpoint in endpoints]
    for own in stores:
        own.migrate(SCHEMA_VALUES)
        own.check()
        own.insert("points", points("own", 10), token="once")
    cluster.wait_in_sync()
    for own in stores:
        own.check_reading(SCHEMA_VALUES)
        assert own.query("SELECT count() FROM ops.points") == [(10,)]
        assert own.query("SELECT count() FROM system.tables WHERE database = 'ops' AND engine = 'Distributed'") == [
            (0,)
        ]
        own.close()
    with cluster.nodes[0].admin() as client:
        client.command(f"DROP DATABASE {OTHER_DATABASE} ON CLUSTER {NAME} SYNC")
