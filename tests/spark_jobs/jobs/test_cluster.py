"""A stand-alone cluster of two workers, packages by --py-files, yields the same rows as a local session.

Its event log is one that the history server reads, and does not contain ClickHouse's password.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from exporters.clickhouse.connection import PASSWORD
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import Options
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.recent import FRIDAY_MS
from tests.kit.spark_cluster import running_cluster, submitted

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

START = FRIDAY_MS
CLUSTER = "two-workers"


def fill(clickhouse: RunningClickHouse) -> None:
    """Twenty clients of three users at two brokers for three minutes; Spark has to resolve the limits of half of
    them."""
    at = [(second, client) for second in range(180) for client in range(20)]
    known = [client % 2 for _, client in at]
    rows: dict[str, Any] = {
        "cluster": [CLUSTER] * len(at),
        "quota_key": ["producer_byte_rate"] * len(at),
        "ts": pa.array([START + second * 1000 for second, _ in at], pa.timestamp("ms", "UTC")),
        "user": [f"u{client % 3}" for _, client in at],
        "client_id": [f"c{client}" for _, client in at],
        "ip": [""] * len(at),
        "broker_id": pa.array([client % 2 for _, client in at], pa.int32()),
        "bytes": pa.array([0] * len(at), pa.uint64()),
        "rate": [float(10 * client + second % 7) for second, client in at],
        "throttle_ms": [float(700 * (client == 19)) for _, client in at],
        "throttled_requests": pa.array([0] * len(at), pa.uint64()),
        "source": ["gateway"] * len(at),
        "interval_ms": pa.array([1000] * len(at), pa.uint32()),
        "muted_ms": pa.array([700 * (client == 19) for _, client in at], pa.uint32()),
        "limit": pa.array([500.0 if one else None for one in known], pa.float64()),
        "limit_known": pa.array(known, pa.uint8()),
        "bucket_client_id": [""] * len(at),
    }
    clickhouse.store.insert("quota_usage", pa.table(rows), token=CLUSTER)
    limit: dict[str, Any] = {
        "cluster": [CLUSTER],
        "user": ["<default>"],
        "client_id": [""],
        "ip": [""],
        "quota_key": ["producer_byte_rate"],
        "value": [500.0],
        "valid_from": pa.array([START - 60_000], pa.timestamp("ms", "UTC")),
    }
    clickhouse.store.insert("quota_limits", pa.table(limit), token=f"{CLUSTER}-limit")


def committed(clickhouse: RunningClickHouse) -> list[Any]:
    return list(
        clickhouse.store.query(
            "SELECT * EXCEPT (run_id, run_version) FROM headroom.quota_utilization_committed"
            f" WHERE cluster = '{CLUSTER}' ORDER BY window_start, user, client_id"
        )
    )


def test_two_worker_cluster_yields_the_same_rows(
    spark: SparkSession, clickhouse: RunningClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(clickhouse)
    quota_headroom.run(Options(clickhouse.url, TimeRange(START, START + 180_000, 60), cluster=CLUSTER))
    here = committed(clickhouse)
    assert len(here) == 60
    between = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER]
    options = ["--url", clickhouse.writer.url, *between, "--output", "json"]
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\nspark.eventLog.compress false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(PASSWORD, clickhouse.server.password)
    with (
        running_cluster(tmp_path) as cluster,
        submitted(tmp_path, Path(quota_headroom.__file__), cluster.url, options) as driver,
    ):
        output, _ = driver.communicate()
    log = (tmp_path / "driver.log").read_text(errors="replace")
    assert driver.returncode == 0, log[-4000:]
    assert output.count(b'"client_id"') == 20
    assert len(list(tmp_path.glob("worker-*/app-*/*"))) == 2, log[-4000:]  # one executor per worker
    assert committed(clickhouse) == here
    versions = f"SELECT uniqExact(run_id) FROM headroom.quota_utilization WHERE cluster = '{CLUSTER}'"
    assert clickhouse.store.query(versions)[0][0] == 2
    logged = b"".join(file.read_bytes() for file in events.rglob("events_*"))
    assert b"SparkListenerApplicationEnd" in logged
    assert clickhouse.server.password.encode() not in logged
