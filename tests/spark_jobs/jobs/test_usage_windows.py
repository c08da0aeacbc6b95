"""Jobs read minutes of usage_1m, which they bring up to date first: rows of any cadence, corrected ones, and minutes
whose rows are gone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from quota_metrics.verdict.window import Window
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.jobs.usage_windows import counted, limits_of, read_usage
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import START, drawn, insert
from tests.kit.windows_reference import Row, windows

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

MINUTE = 60_000
HOUR_MS = 60 * MINUTE


def usage(
    spark: SparkSession, clickhouse: RunningClickHouse, cluster: str, window_s: int = 60, to_ms: int = START + HOUR_MS
) -> list[Window]:
    """The windows from START on."""
    server = clickhouse_of(clickhouse.url)
    hours = counted(server, TimeRange(START, to_ms, window_s), "gateway", cluster)
    rows = read_usage(spark, server, hours, limits_of(server, hours, cluster)).collect()
    return sorted((Window(**row.asDict()) for row in rows), key=lambda window: window.window_start_ms)


def every(seconds: int, rates: Callable[[int], float], *, limit: float | None = 100.0) -> list[Row]:
    """Rows of one client over an hour, each of its rate in the seconds before it."""
    return [
        Row(
            *(START + at * 1000, "u", "c", 1, rates(at), 0.0, "g", seconds * 1000, limit, int(limit is not None)),
            bucket_user="u",
        )
        for at in range(0, 3600, seconds)
    ]


@pytest.mark.parametrize("cadence_s", [7, 11, 13])
def test_rows_of_any_cadence_make_longer_windows(
    spark: SparkSession, clickhouse: RunningClickHouse, cadence_s: int
) -> None:
    """Steps begin with each minute."""
    cluster = f"cadence-{cadence_s}"
    insert(clickhouse.store, every(cadence_s, lambda at: 10.0 if at % 300 < 60 else 95.0), cluster)
    rows = usage(spark, clickhouse, cluster, 300)
    assert [row.usage_p95 for row in rows] == [95.0] * 12


def test_rows_that_are_inserted_again_with_a_limit_count_once(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    """The quota is in the key of usage_1m, not in that of quota_usage."""
    for limit in (None, 100.0, 50.0):
        insert(clickhouse.store, every(1, lambda _: 40.0, limit=limit), "corrected")
        rows = usage(spark, clickhouse, "corrected")
        assert {(row.usage, row.limit, row.samples) for row in rows} == {(40.0, limit, 60)}
        assert len(rows) == 60


def test_minutes_whose_rows_are_gone_stay(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    insert(clickhouse.store, every(1, lambda _: 40.0), "expired")
    rows = usage(spark, clickhouse, "expired")
    clickhouse.store.command("DELETE FROM headroom.quota_usage WHERE cluster = 'expired'", {})
    assert usage(spark, clickhouse, "expired") == rows
    part = TimeRange(START + 10 * MINUTE, START + 20 * MINUTE, 60)
    hours = counted(clickhouse_of(clickhouse.url), part, "gateway", "expired")
    assert sum(count["samples"] for count in hours.counts) == 600


def test_throttle_time_without_an_interval_mutes_for_ten_minutes_at_most(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    """A range that begins later looks back for so long: windows do not depend on where a range begins."""
    insert(clickhouse.store, [Row(START, "u", "c", 1, 5.0, throttle_ms=1_800_000.0)], "half-an-hour")
    assert [row.muted_ms for row in usage(spark, clickhouse, "half-an-hour")] == [60_000.0] * 10
    later = TimeRange(START + 5 * MINUTE, START + HOUR_MS, 60)
    server = clickhouse_of(clickhouse.url)
    rows = read_usage(spark, server, counted(server, later, "gateway", "half-an-hour")).collect()
    assert sorted((row["window_start_ms"] - START) // MINUTE for row in rows) == [5, 6, 7, 8, 9]


def test_unusable_rows_are_counted(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    rows = drawn(random.Random(0))
    insert(clickhouse.store, rows, "counted")
    hours = counted(clickhouse_of(clickhouse.url), TimeRange(START, START + 3 * MINUTE), "gateway", "counted")
    in_range = [row for row in rows if START <= row.at_ms < START + 3 * MINUTE]
    bad = [row for row in in_range if not 0 <= row.rate <= 1e15]
    assert bad
    assert (hours.bad, sum(count["samples"] for count in hours.counts)) == (len(bad), len(in_range) - len(bad))
    expected = windows(rows, START, START + 3 * MINUTE, MINUTE)
    assert len(usage(spark, clickhouse, "counted", to_ms=START + 3 * MINUTE)) == len(expected)
