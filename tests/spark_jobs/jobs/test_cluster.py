"""A job from argv to published rows: its way is the one of ARCHITECTURE.md, and a stand-alone cluster of two workers
yields the rows of a local session: packages by --py-files, and executors whose Python has deploy/spark/requirements.txt
alone. Its event log is one that the history server reads, and does not contain ClickHouse's password.
"""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exporters.clickhouse.connection import PASSWORD
from headroom.__main__ import main
from quota_metrics.minutes import records, usage_minutes
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.executor_python import make_executor_python
from tests.kit.job_rows import CLUSTER, START, committed, fill
from tests.kit.spark_cluster import running_cluster, submitted
from tests.kit.ways import files_that_run, listed

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]


@pytest.mark.release
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


@pytest.mark.interpreted
def test_a_job_runs_through_the_listed_files_only(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(clickhouse)
    for cached in (records.statement, usage_minutes._statement):
        cached.cache_clear()  # an earlier test of the same process has filled them
    bounds = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER, "--output", "json"]
    monkeypatch.setattr(sys, "argv", ["headroom", "job", "quota-headroom", "--url", clickhouse.url, *bounds])
    with files_that_run(until="JobRun.publish") as files, pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert committed(clickhouse)
    way, asked = listed("The way of a job")
    assert sorted(files) == sorted({*way, *asked})
    assert len(way) <= 16
