"""A stand-alone cluster of two workers yields the same rows as a local session: packages by --py-files, and executors
whose Python has deploy/spark/requirements.txt alone.

Its event log is one that the history server reads, and does not contain ClickHouse's password.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exporters.clickhouse.connection import PASSWORD
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.executor_python import make_executor_python
from tests.kit.job_rows import CLUSTER, START, committed, fill
from tests.kit.spark_cluster import running_cluster, submitted

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.clickhouse]


def test_two_worker_cluster_yields_the_same_rows(
    spark: SparkSession, clickhouse: RunningClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(clickhouse)
    quota_headroom.run(HeadroomOptions(clickhouse.url, TimeRange(START, START + 180_000, 60), cluster=CLUSTER))
    here = committed(clickhouse)
    assert len(here) == 60
    between = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER]
    options = ["--url", clickhouse.writer.url, *between, "--output", "json"]
    python = str(make_executor_python(tmp_path / "executor"))
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\nspark.eventLog.compress false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(PASSWORD, clickhouse.writer.password)
    with (
        running_cluster(tmp_path) as cluster,
        submitted(tmp_path, Path(quota_headroom.__file__), cluster.url, options, python=python) as driver,
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
    assert clickhouse.writer.password.encode() not in logged
    # Few rows: a plan that is compiled costs more than it saves. Executors came after the plan's settings were chosen.
    assert b'"spark.sql.codegen.wholeStage":"false"' in logged
    assert b'"spark.sql.adaptive.enabled":"false"' not in logged
