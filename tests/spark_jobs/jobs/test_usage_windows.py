"""Whole hours are read from usage_1m, the rest of a range from quota_usage, with equal results."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.jobs import quota_headroom, usage_windows
from spark_jobs.jobs.usage_windows import HOUR_MS, hour_ranges, refresh
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import START, drawn, insert

MINUTE = 60_000
CLUSTER = "whole-hours"


@given(st.integers(0, 5000), st.integers(1, 5000), st.sampled_from([1, 10, 60, 90, 300, 3600]))
def test_ranges_tile_the_range_and_stored_ones_are_whole_hours(first: int, windows: int, window_s: int) -> None:
    when = TimeRange(first * window_s * 1000, (first + windows) * window_s * 1000, window_s)
    found = usage_windows.ranges(when)
    assert [part.from_ms for part, _ in found] == [when.from_ms, *(part.to_ms for part, _ in found[:-1])]
    assert found[-1][0].to_ms == when.to_ms
    for part, stored in found:
        if stored:
            assert (part.from_ms % HOUR_MS, part.to_ms % HOUR_MS, window_s % 60) == (0, 0, 0)


def test_hour_ranges_include_the_following_hour() -> None:
    assert hour_ranges([0, HOUR_MS, 5 * HOUR_MS]) == [(0, 3 * HOUR_MS), (5 * HOUR_MS, 7 * HOUR_MS)]


@pytest.mark.clickhouse
def test_partially_covered_hour_is_refreshed_completely(clickhouse: RunningClickHouse) -> None:
    """The next refresh finds no new rows in it, so omitted windows would stay missing."""
    insert(clickhouse.store, drawn(random.Random(4)), "part-of-an-hour")
    refresh(clickhouse_of(clickhouse.url), "gateway", START, START + MINUTE)
    newest = "SELECT max(window_start) = toDateTime({}) FROM headroom.usage_1m WHERE cluster = 'part-of-an-hour'"
    assert clickhouse.store.query(newest.format(START // 1000 + 120)) == [(1,)]


def committed(clickhouse: RunningClickHouse) -> list[Any]:
    return list(
        clickhouse.store.query(
            "SELECT * EXCEPT (run_id, run_version) FROM headroom.quota_utilization_committed"
            f" WHERE cluster = '{CLUSTER}' ORDER BY window_start, user, client_id"
        )
    )


@pytest.mark.spark
@pytest.mark.clickhouse
def test_usage_1m_and_raw_rows_yield_the_same_results(
    spark: SparkSession, clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(4):
        rows = [row._replace(user=f"{row.user}-{seed}") for row in drawn(random.Random(seed))]
        insert(
            clickhouse.store, [row._replace(bucket_user=row.user if row.bucket_user else "") for row in rows], CLUSTER
        )
    when = TimeRange(START - 10 * MINUTE, START + 65 * MINUTE, 60)
    options = HeadroomOptions(clickhouse.url, when, cluster=CLUSTER)
    quota_headroom.run(options)
    stored = committed(clickhouse)
    recorded = "SELECT rows_in, rows_bad FROM headroom.job_runs FINAL ORDER BY run_version DESC LIMIT 1"
    counts = clickhouse.store.query(recorded)
    assert len(stored) > 200
    monkeypatch.setattr(usage_windows, "ranges", lambda when: [(when, False)])
    quota_headroom.run(options)
    assert committed(clickhouse) == stored
    assert counts[0][1] > 0
    assert clickhouse.store.query(recorded) == counts
