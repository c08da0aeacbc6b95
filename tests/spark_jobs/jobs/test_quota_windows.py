"""A cluster with `quota.window.num=31`: bursts that it allows are not critical; the burst credit is larger."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from exporters.model import StoredFacts, UsageSample
from quota_metrics.windows import QuotaWindow, Rate
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from telemetry.ingest.arrow_tables import facts_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import now_ms, sample, write
from tests.kit.usage_rows import FRIDAY_MS

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

ENLARGED, UNKNOWN = "windows-31", "windows-unknown"
LIMIT, BURST, EACH_S = 100_000.0, 1_200_000.0, 20
SECONDS = 120


def bursts(cluster: str, window: QuotaWindow) -> list[UsageSample]:
    """A row a second of a client that sends BURST bytes each EACH_S seconds, and of one that sends nothing any more.
    The rate is Kafka's over `window`, as the gateway meters it."""
    rate = Rate(window.samples, window.window_ms)
    rows = []
    for second in range(-SECONDS, SECONDS):
        at_ms = FRIDAY_MS + second * 1000
        rate.record(BURST if second % EACH_S == 0 else 0.0, at_ms)
        if second > 0:
            rows.append(sample(cluster, at_ms, rate.measure(at_ms), client_id="bursty", limit=LIMIT))
            rows.append(sample(cluster, at_ms, 0.001, client_id="quiet", limit=LIMIT, bucket_client_id="quiet"))
    return rows


def test_bursts_within_an_enlarged_window_are_not_critical(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    enlarged = StoredFacts(ENLARGED, 1, FRIDAY_MS - 1, "4.3", 31, 1000, 11, 1000, "", 0, 8, 3, {})
    store.insert("cluster_facts", facts_table([enlarged], now_ms()), token="windows-facts")
    write(store, bursts(ENLARGED, QuotaWindow(31)), "windows-31")
    write(store, bursts(UNKNOWN, QuotaWindow()), "windows-unknown")
    rows_of = {}
    for cluster in (ENLARGED, UNKNOWN):
        when = TimeRange(FRIDAY_MS, FRIDAY_MS + SECONDS * 1000)
        rows = quota_headroom.run(HeadroomOptions(clickhouse.url, when, cluster=cluster))
        rows_of[cluster] = {row["client_id"]: row for row in rows}
    assert rows_of[ENLARGED]["bursty"]["level"] in ("watch", "warn")
    assert rows_of[ENLARGED]["bursty"]["utilization_p95"] <= 0.85
    assert rows_of[UNKNOWN]["bursty"]["level"] == "critical"  # Kafka's defaults would throttle it
    credit = {cluster: rows["quiet"]["burst_credit"] for cluster, rows in rows_of.items()}
    assert credit == {ENLARGED: pytest.approx(3e6), UNKNOWN: pytest.approx(1e6)}
