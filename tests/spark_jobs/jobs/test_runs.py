"""Consecutive runs: which windows they replace, late rows, and recovery after a killed run."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import MINUTE, START, insert_limits, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]


def insert(
    clickhouse: RunningClickHouse,
    cluster: str,
    client_id: str,
    rate: float,
    from_s: int = 0,
    to_s: int = 120,
    **more: Any,
) -> None:
    """A row a second of one client in [from_s, to_s), and its quota of 100."""
    at_ms = range(START + from_s * 1000, START + to_s * 1000, 1000)
    columns = {"user": "u", "client_id": client_id, "interval_ms": 1000, "limit": 100.0, "bucket_client_id": "", **more}
    insert_usage(clickhouse.store, cluster, at_ms, rate, **columns)


def run(
    clickhouse: RunningClickHouse, cluster: str, to_s: int = 120, from_s: int = 0, window_s: int = 60, **more: Any
) -> None:
    when = TimeRange(START + from_s * 1000, START + to_s * 1000, window_s)
    quota_headroom.run(HeadroomOptions(clickhouse.url, when, cluster=cluster, **more))


def levels(clickhouse: RunningClickHouse, cluster: str, table: str = "quota_utilization FINAL") -> list[Any]:
    return list(
        clickhouse.store.query(
            "SELECT source, client_id, toInt64(toUnixTimestamp(window_start)) % 3600, level, complete FROM"
            f" headroom.{table} WHERE cluster = '{cluster}' ORDER BY ALL"
        )
    )


def test_run_of_another_source_replaces_nothing(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    insert(clickhouse, "sources", "a", 97.0)
    insert(clickhouse, "sources", "a", 5.0, source="jmx")
    run(clickhouse, "sources")
    run(clickhouse, "sources", source="jmx")
    expected = [
        *(("gateway", "a", 0, "critical", 1), ("gateway", "a", 60, "critical", 1)),
        *(("jmx", "a", 0, "ok", 1), ("jmx", "a", 60, "ok", 1)),
    ]
    assert levels(clickhouse, "sources") == expected
    assert levels(clickhouse, "sources", "quota_utilization_committed") == expected


def test_partial_window_never_replaces_a_complete_one(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    insert(clickhouse, "partial", "a", 5.0, to_s=180)
    insert(clickhouse, "partial", "a", 97.0, from_s=180, to_s=240)
    run(clickhouse, "partial", to_s=180, window_s=120)
    assert levels(clickhouse, "partial")[1] == ("gateway", "a", 120, "ok", 0)
    run(clickhouse, "partial", to_s=240, window_s=120)
    complete = [("gateway", "a", 0, "ok", 1), ("gateway", "a", 120, "critical", 1)]
    assert levels(clickhouse, "partial") == complete
    run(clickhouse, "partial", to_s=180, window_s=120)
    assert levels(clickhouse, "partial") == complete
    assert levels(clickhouse, "partial", "quota_utilization_committed") == complete


def test_level_is_unknown_before_the_first_observation_of_quotas(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    insert(clickhouse, "unobserved", "a", 97.0, limit=None)
    run(clickhouse, "unobserved")
    assert [row[2:4] for row in levels(clickhouse, "unobserved")] == [(0, "unknown"), (60, "unknown")]
    insert_limits(clickhouse.store, "unobserved", START + MINUTE, {"u": 100.0})
    run(clickhouse, "unobserved")
    assert [row[2:4] for row in levels(clickhouse, "unobserved")] == [(0, "unknown"), (60, "critical")]
    known = "SELECT limit_known, reason FROM headroom.quota_utilization FINAL WHERE cluster = 'unobserved'"
    (before, reason), (after, _) = clickhouse.store.query(f"{known} ORDER BY window_start")
    assert (before, after) == (0, 1)
    assert "no quota was observed yet" in reason


def test_late_rows_are_not_lost_to_a_run_of_other_windows(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with another `--cluster` or `--window` computes other windows, so its watermark says nothing of these."""
    monkeypatch.setattr(quota_headroom, "WATERMARK_MARGIN_MS", 0)
    insert(clickhouse, "mine", "a", 5.0, from_s=-300)
    insert(clickhouse, "other", "a", 5.0, from_s=-300)
    run(clickhouse, "mine", from_s=-300, recent=True)
    run(clickhouse, "other", from_s=-300, recent=True)
    five = TimeRange(START - 300_000, START + 300_000, 300)
    quota_headroom.run(HeadroomOptions(clickhouse.url, five, cluster="mine", recent=True))
    time.sleep(0.01)
    insert(clickhouse, "mine", "late", 97.0, from_s=-240, to_s=-180)
    run(clickhouse, "other", recent=True)
    later = TimeRange(START, START + 300_000, 300)
    quota_headroom.run(HeadroomOptions(clickhouse.url, later, cluster="mine", recent=True))
    run(clickhouse, "mine", recent=True)
    late = "SELECT rows_late FROM headroom.job_runs FINAL WHERE status = 'succeeded' ORDER BY run_version DESC LIMIT 1"
    assert list(clickhouse.store.query(late)) == [(60,)]
    after = clickhouse.store.query(
        "SELECT window_s, toInt64(toUnixTimestamp(window_start)) * 1000, toString(level)"
        " FROM headroom.quota_utilization FINAL WHERE cluster = 'mine'"
    )
    assert {(60, START - 240_000, "critical"), (300, START - 300_000, "critical")} <= set(after)


@pytest.mark.release
def test_late_rows_of_hours_ago_change_what_a_complete_run_would(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_headroom, "WATERMARK_MARGIN_MS", 0)
    ago_s = 3 * 3600
    insert(clickhouse, "hours", "a", 91.0, from_s=-ago_s - 300, to_s=-ago_s + 2400)
    insert(clickhouse, "hours", "a", 5.0)
    run(clickhouse, "hours", from_s=-ago_s - 300, recent=True)
    before = levels(clickhouse, "hours")
    time.sleep(0.01)
    insert(clickhouse, "hours", "b", 7.0, from_s=-ago_s, to_s=-ago_s + 60)  # shares the quota of 100 with a
    run(clickhouse, "hours", recent=True)
    rows = "SELECT * EXCEPT (run_id, run_version) FROM headroom.quota_utilization FINAL WHERE cluster = 'hours'"
    changed = sorted(map(repr, clickhouse.store.query(rows)))
    assert levels(clickhouse, "hours") != before
    run(clickhouse, "hours", from_s=-ago_s - 300)
    assert sorted(map(repr, clickhouse.store.query(rows))) == changed


@pytest.mark.release
def test_plans_for_many_rows_give_the_same_rows(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (
        "spark.sql.codegen.wholeStage",
        "spark.sql.codegen.factoryMode",
        "spark.sql.autoBroadcastJoinThreshold",
    )
    before = {name: spark.conf.get(name) for name in settings}
    insert(clickhouse, "compiled", "a", 97.0)
    insert(clickhouse, "compiled", "b", 85.0, to_s=60)
    run(clickhouse, "compiled")
    published = "FROM headroom.quota_utilization FINAL WHERE cluster = 'compiled'"
    rows, run_ids = f"SELECT * EXCEPT (run_id, run_version) {published}", f"SELECT DISTINCT run_id {published}"
    expected, first_run = sorted(map(repr, clickhouse.store.query(rows))), list(clickhouse.store.query(run_ids))
    monkeypatch.setattr(quota_headroom, "MANY_ROWS", 180)
    try:
        run(clickhouse, "compiled")
        assert {name: spark.conf.get(name) for name in settings} != before
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    assert sorted(map(repr, clickhouse.store.query(rows))) == expected
    assert list(clickhouse.store.query(run_ids)) != first_run


_RUN = """
import sys
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
quota_headroom.run(HeadroomOptions(sys.argv[1], TimeRange(int(sys.argv[2]), int(sys.argv[3]), 60), cluster=sys.argv[4]))
"""


def test_killed_run_publishes_nothing_and_the_next_run_succeeds(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    insert(clickhouse, "killed", "a", 97.0)
    asked = [sys.executable, "-c", _RUN, clickhouse.url, str(START), str(START + 2 * MINUTE), "killed"]
    counted = "SELECT count() FROM headroom.usage_1m WHERE cluster = 'killed'"
    with subprocess.Popen(asked, start_new_session=True) as victim:
        while not clickhouse.store.query(counted)[0][0]:
            assert victim.poll() is None
            time.sleep(0.05)
        os.killpg(victim.pid, signal.SIGKILL)
    assert levels(clickhouse, "killed", "quota_utilization_committed") == []
    run(clickhouse, "killed")
    assert [row[3] for row in levels(clickhouse, "killed")] == ["critical", "critical"]
    reported = "SELECT status, error FROM headroom.job_runs FINAL WHERE owner LIKE '%/{}'"
    assert list(clickhouse.store.query(reported.format(victim.pid))) == [("failed", "killed: its process is gone")]


def test_sigterm_records_the_run_as_failed(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    insert(clickhouse, "ended", "a", 97.0)
    when = ["--from", str(START // 1000), "--to", str(START // 1000 + 120)]
    asked = [sys.executable, "-m", "headroom", "job", "quota-headroom", "--url", clickhouse.url, *when]
    reported = "SELECT status, error FROM headroom.job_runs FINAL WHERE owner LIKE '%/{}'"
    with subprocess.Popen([*asked, "--cluster", "ended"]) as job:
        while not clickhouse.store.query(reported.format(job.pid)):
            assert job.poll() is None
            time.sleep(0.05)
        job.terminate()
        assert job.wait(240) == 128 + signal.SIGTERM
    assert list(clickhouse.store.query(reported.format(job.pid))) == [("failed", "Terminated: ended by SIGTERM")]


@pytest.mark.release
def test_concurrent_runs_are_serialized(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    """Windows never mix two runs: the later run starts after the earlier one has ended, and replaces all its rows."""
    insert(clickhouse, "both", "a", 97.0)
    insert(clickhouse, "both", "b", 5.0)
    asked = [sys.executable, "-c", _RUN, clickhouse.url, str(START), str(START + 2 * MINUTE), "both"]
    with subprocess.Popen(asked) as other:
        owner = f"owner LIKE '%/{other.pid}'"
        begun = f"SELECT count() FROM headroom.job_runs FINAL WHERE {owner}"
        while not clickhouse.store.query(begun)[0][0]:
            assert other.poll() is None
            time.sleep(0.05)
        run(clickhouse, "both")
        ended = f"SELECT status FROM headroom.job_runs FINAL WHERE {owner}"
        assert list(clickhouse.store.query(ended)) == [("succeeded",)]
    assert other.returncode == 0
    assert [row[1:4] for row in levels(clickhouse, "both", "quota_utilization_committed")] == [
        *(("a", 0, "critical"), ("a", 60, "critical"), ("b", 0, "critical"), ("b", 60, "critical")),
    ]
    published = clickhouse.store.query(
        "SELECT window_start, count(), uniqExact(run_id), any(run_version) FROM headroom.quota_utilization_committed"
        " WHERE cluster = 'both' GROUP BY window_start"
    )
    assert [tuple(row[1:3]) for row in published] == [(2, 1), (2, 1)]
    newest = "SELECT max(run_version) FROM headroom.quota_utilization WHERE cluster = 'both'"
    assert {row[3] for row in published} == {clickhouse.store.query(newest)[0][0]}


def test_stream_that_begins_again_computes_what_late_rows_change(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level of the window after the late one is held by it; windows without new rows stay those of their run."""
    monkeypatch.setattr(quota_headroom, "WATERMARK_MARGIN_MS", 0)
    insert(clickhouse, "stream", "a", 5.0, from_s=60)
    insert(clickhouse, "stream", "a", 5.0, from_s=-7200, to_s=-7140)
    run(clickhouse, "stream", from_s=-7200, stream=True, once=True)
    assert [row[2:] for row in levels(clickhouse, "stream")] == [(0, "ok", 1), (60, "ok", 1)]
    run_ids = "SELECT window_start, run_id FROM headroom.quota_utilization FINAL WHERE cluster = 'stream'"
    before = dict(clickhouse.store.query(run_ids))
    time.sleep(0.01)
    insert(clickhouse, "stream", "a", 97.0, to_s=60)
    run(clickhouse, "stream", from_s=120, to_s=180, stream=True, once=True)
    assert levels(clickhouse, "stream") == [
        ("gateway", "a", 0, "ok", 1),  # of two hours before
        ("gateway", "a", 0, "critical", 1),
        ("gateway", "a", 60, "critical", 1),
    ]
    after = dict(clickhouse.store.query(run_ids))
    assert after[min(after)] == before[min(before)]
    assert after[max(after)] != before[max(before)]
