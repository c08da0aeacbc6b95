"""Jobs read minutes of usage_1m, which they bring up to date first, also those whose rows are gone. In a cluster with
`quota.window.num=31` bursts that it allows are not critical."""

import random

import pytest
from pyspark.sql import SparkSession

from exporters.model import StoredFacts, UsageSample
from quota_metrics.verdict.window import Window
from quota_metrics.windows import QuotaWindow, Rate
from spark_jobs.clickhouse.source import clickhouse_of
from spark_jobs.jobs import quota_headroom
from spark_jobs.jobs.usage_windows import count_minutes, limits_of, read_usage
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from telemetry.ingest.arrow_tables import facts_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import now_ms, sample, write
from tests.kit.usage_rows import MINUTE, START, drawn, insert
from tests.kit.windows_reference import Row, windows

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

HOUR_MS = 60 * MINUTE


def usage(
    spark: SparkSession, clickhouse: RunningClickHouse, cluster: str, to_ms: int = START + HOUR_MS
) -> list[Window]:
    """The windows from START on."""
    server = clickhouse_of(clickhouse.url)
    counted = count_minutes(server, TimeRange(START, to_ms), "gateway", cluster)
    rows = read_usage(spark, server, counted, limits_of(server, counted)).collect()
    return sorted((Window(**row.asDict()) for row in rows), key=lambda window: window.window_start_ms)


def test_minutes_whose_rows_are_gone_stay(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    of_an_hour = [Row(START + at * 1000, "u", "c", 1, 40.0, bucket_user="u") for at in range(3600)]
    insert(clickhouse.store, of_an_hour, "expired")
    rows = usage(spark, clickhouse, "expired")
    clickhouse.store.command("DELETE FROM headroom.quota_usage WHERE cluster = 'expired'", {})
    assert usage(spark, clickhouse, "expired") == rows
    part = TimeRange(START + 10 * MINUTE, START + 20 * MINUTE, 60)
    counted = count_minutes(clickhouse_of(clickhouse.url), part, "gateway", "expired")
    assert counted.samples_since(part.from_ms) == 600


def test_throttle_time_without_an_interval_mutes_for_ten_minutes_at_most(
    spark: SparkSession, clickhouse: RunningClickHouse
) -> None:
    """A range that begins later looks back for so long: windows do not depend on where a range begins."""
    insert(clickhouse.store, [Row(START, "u", "c", 1, 5.0, throttle_ms=1_800_000.0)], "half-an-hour")
    assert [row.muted_ms for row in usage(spark, clickhouse, "half-an-hour")] == [60_000.0] * 10
    later = TimeRange(START + 5 * MINUTE, START + HOUR_MS, 60)
    server = clickhouse_of(clickhouse.url)
    counted = count_minutes(server, later, "gateway", "half-an-hour")
    rows = read_usage(spark, server, counted, limits_of(server, counted)).collect()
    assert sorted((row["window_start_ms"] - START) // MINUTE for row in rows) == [5, 6, 7, 8, 9]


def test_unusable_rows_are_counted(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    rows = drawn(random.Random(0))
    insert(clickhouse.store, rows, "counted")
    counted = count_minutes(clickhouse_of(clickhouse.url), TimeRange(START, START + 3 * MINUTE), "gateway", "counted")
    in_range = [row for row in rows if START <= row.at_ms < START + 3 * MINUTE]
    bad = [row for row in in_range if not 0 <= row.rate <= 1e15]
    assert bad
    assert (counted.bad, counted.samples_since(START)) == (len(bad), len(in_range) - len(bad))
    expected = windows(rows, START, START + 3 * MINUTE, MINUTE)
    assert len(usage(spark, clickhouse, "counted", to_ms=START + 3 * MINUTE)) == len(expected)


ENLARGED, UNKNOWN = "windows-31", "windows-unknown"
LIMIT, BURST, EACH_S = 100_000.0, 1_200_000.0, 20
SECONDS = 120


def bursts(cluster: str, window: QuotaWindow) -> list[UsageSample]:
    """A row a second of a client that sends BURST bytes each EACH_S seconds, and of one that sends nothing any more.
    The rate is Kafka's over `window`, as the gateway meters it."""
    rate = Rate(window.samples, window.window_ms)
    rows = []
    for second in range(-SECONDS, SECONDS):
        at_ms = START + second * 1000
        rate.record(BURST if second % EACH_S == 0 else 0.0, at_ms)
        if second > 0:
            rows.append(sample(cluster, at_ms, rate.measure(at_ms), client_id="bursty", limit=LIMIT))
            rows.append(sample(cluster, at_ms, 0.001, client_id="quiet", limit=LIMIT, bucket_client_id="quiet"))
    return rows


def test_bursts_within_an_enlarged_window_are_not_critical(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    enlarged = StoredFacts(ENLARGED, 1, START - 1, "4.3", 31, 1000, 11, 1000, "", 0, 8, 3, {})
    store.insert("cluster_facts", facts_table([enlarged], now_ms()), token="windows-facts")
    write(store, bursts(ENLARGED, QuotaWindow(31)), "windows-31")
    write(store, bursts(UNKNOWN, QuotaWindow()), "windows-unknown")
    rows_of = {}
    for cluster in (ENLARGED, UNKNOWN):
        when = TimeRange(START, START + SECONDS * 1000)
        rows = quota_headroom.run(HeadroomOptions(clickhouse.url, when, cluster=cluster)).rows
        rows_of[cluster] = {row["client_id"]: row for row in rows}
    assert rows_of[ENLARGED]["bursty"]["level"] in ("watch", "warn")
    assert rows_of[ENLARGED]["bursty"]["utilization_p95"] <= 0.85
    assert rows_of[UNKNOWN]["bursty"]["level"] == "critical"  # Kafka's defaults would throttle it
    credit = {cluster: rows["quiet"]["burst_credit"] for cluster, rows in rows_of.items()}
    assert credit == {ENLARGED: pytest.approx(3e6), UNKNOWN: pytest.approx(1e6)}
