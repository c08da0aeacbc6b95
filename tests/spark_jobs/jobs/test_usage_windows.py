"""Whole hours are read from usage_1m, the rest of a range from quota_usage, with equal results."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.jobs import quota_headroom, usage_windows
from spark_jobs.jobs.usage_windows import HOUR_MS, hour_ranges, refresh
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import START, drawn, insert
from tests.kit.windows_reference import Row

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


def usage_rows(clickhouse: RunningClickHouse, cluster: str, samples: Samples, window_s: int = 60) -> list[Any]:
    """The windows of the hour from START."""
    asked = {"source": "gateway", "cluster": cluster, "quota_key": "producer_byte_rate", "run": ""}
    bounds = {"from_ms": START, "to_ms": START + HOUR_MS, "window_ms": window_s * 1000}
    query = f"SELECT * FROM ({WindowsQuery(window_s, samples).usage()}) ORDER BY ALL {SETTINGS}"
    return clickhouse_of(clickhouse.url).rows(query, {**asked, **bounds})


def every(seconds: int, rates: Callable[[int], float], *, limit: float | None = 100.0) -> list[Row]:
    """Rows of one client over an hour, each of its rate in the seconds before it."""
    of_meter = {"interval_ms": seconds * 1000, "limit": limit, "limit_known": int(limit is not None)}
    return [
        Row(START + at * 1000, "u", "c", 1, rates(at), bucket_user="u", **of_meter)  # type: ignore[arg-type] # by name
        for at in range(0, 3600, seconds)
    ]


@pytest.mark.clickhouse
@pytest.mark.parametrize("cadence_s", [7, 11, 13])
def test_minutes_of_any_cadence_make_longer_windows(clickhouse: RunningClickHouse, cadence_s: int) -> None:
    """Steps of stored minutes begin with each minute, those of raw rows with the window."""
    cluster = f"cadence-{cadence_s}"
    insert(clickhouse.store, every(cadence_s, lambda at: 10.0 if at % 300 < 60 else 95.0), cluster)
    refresh(clickhouse_of(clickhouse.url), "gateway", START, START + HOUR_MS)
    windows = usage_rows(clickhouse, cluster, Samples.MINUTES, 300)
    assert {row["usage_p95"] for row in windows} == {95.0}
    assert [row["usage_p95"] for row in windows] == [
        row["usage_p95"] for row in usage_rows(clickhouse, cluster, Samples.USAGE, 300)
    ]


@pytest.mark.clickhouse
def test_rows_that_are_inserted_again_with_a_limit_count_once(clickhouse: RunningClickHouse) -> None:
    """The quota is in the key of usage_1m, not in that of quota_usage."""
    cluster = "corrected"
    for limit in (None, 100.0, 50.0):
        insert(clickhouse.store, every(1, lambda at: 40.0, limit=limit), cluster)
        refresh(clickhouse_of(clickhouse.url), "gateway", START, START + HOUR_MS)
    stored = usage_rows(clickhouse, cluster, Samples.MINUTES)
    assert {(row["usage"], row["limit"]) for row in stored} == {(40.0, 50.0)}
    assert stored == usage_rows(clickhouse, cluster, Samples.USAGE)


@pytest.mark.clickhouse
def test_part_of_an_hour_whose_rows_are_gone_is_read_from_its_minutes(clickhouse: RunningClickHouse) -> None:
    insert(clickhouse.store, every(1, lambda at: 40.0), "expired")
    server = clickhouse_of(clickhouse.url)
    part = TimeRange(START + 10 * MINUTE, START + 20 * MINUTE, 60)
    refresh(server, "gateway", START, START + HOUR_MS)
    assert [each.stored for each in usage_windows.counted(server, part, "gateway", "expired")] == [False]
    clickhouse.store.command("DELETE FROM headroom.quota_usage WHERE cluster = 'expired'", {})
    (counts,) = usage_windows.counted(server, part, "gateway", "expired")
    assert (counts.stored, sum(count["samples"] for count in counts.counts)) == (True, 600)


@pytest.mark.clickhouse
def test_throttle_time_without_an_interval_mutes_for_ten_minutes_at_most(clickhouse: RunningClickHouse) -> None:
    """A range that begins later looks back for so long: windows do not depend on where a range begins."""
    insert(clickhouse.store, [Row(START, "u", "c", 1, 5.0, throttle_ms=1_800_000.0)], "half-an-hour")
    windows = usage_rows(clickhouse, "half-an-hour", Samples.USAGE)
    assert [row["muted_ms"] for row in windows] == [60_000.0] * 10


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
