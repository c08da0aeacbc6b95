"""The way of a job in ARCHITECTURE.md is the one that runs, from argv to published rows."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from headroom.__main__ import main
from quota_metrics.minutes import records, usage_minutes
from spark_jobs.jobs.usage_windows import slice_of_minutes
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.job_rows import CLUSTER, START, committed, fill
from tests.kit.ways import files_that_run, listed

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse, pytest.mark.interpreted]


def test_a_job_runs_through_the_listed_files_only(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(clickhouse)
    for cached in (records.statement, usage_minutes._statement, slice_of_minutes):
        cached.cache_clear()  # an earlier test of the same process has filled them
    bounds = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER, "--output", "json"]
    monkeypatch.setattr(sys, "argv", ["headroom", "job", "quota-headroom", "--url", clickhouse.url, *bounds])
    with files_that_run(until="publish") as files, pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert committed(clickhouse)
    way, asked = listed("The way of a job")
    assert sorted(files) == sorted({*way, *asked})
    assert len(way) <= 16
