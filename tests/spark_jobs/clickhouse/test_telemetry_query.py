"""What clients report, by window, from points on a real server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quota_metrics.levels.client_signals import metrics_of
from spark_jobs.clickhouse.queries import TELEMETRY
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.points import NOW_MS, TIME, points

pytestmark = pytest.mark.clickhouse

WINDOW_MS = 60_000
START = NOW_MS - NOW_MS % WINDOW_MS


def test_replayed_push_counts_once_before_a_merge(clickhouse: RunningClickHouse) -> None:
    """A replay stores the same points again; ClickHouse merges them away only later."""
    metrics = [metrics_of(name)[0] for name in ("outgoing_bytes", "rebalances", "records_failed", "records_lag")]
    pushed = points(
        "replayed",
        len(metrics),
        metric=pa.array(metrics),
        ts=pa.array([START + 1000] * len(metrics), TIME),
        value=[1000.0, 2.0, 7.0, 5000.0],
        series_id=pa.array(range(len(metrics)), pa.uint64()),
    )
    with connected(clickhouse.writer) as client:
        client.command("SYSTEM STOP MERGES headroom.points")
        try:
            for number in range(2):
                clickhouse.store.insert("points", pushed, token=f"replayed-{number}")
            bounds = {"from_ms": START, "to_ms": START + WINDOW_MS, "window_ms": WINDOW_MS, "cluster": "replayed"}
            (row,) = client.query(TELEMETRY, bounds).named_results()
        finally:
            client.command("SYSTEM START MERGES headroom.points")
    assert [row[name] for name in ("outgoing_bytes", "rebalances", "records_failed", "records_lag")] == [
        *(1000.0, 2.0, 7.0, 5000.0)
    ]
