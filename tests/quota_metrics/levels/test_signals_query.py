"""What clients report, by window, from points on a real server."""

from __future__ import annotations

import random
from statistics import correlation, linear_regression

import pyarrow as pa
import pytest

from quota_metrics.levels.client_signals import metrics_of
from quota_metrics.levels.signals_query import SIGNALS
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
            bounds = {"from_ms": START, "to_ms": START + WINDOW_MS, "window_ms": WINDOW_MS}
            (row,) = client.query(SIGNALS, {**bounds, "cluster": "replayed", "telemetry": 1}).named_results()
        finally:
            client.command("SYSTEM START MERGES headroom.points")
    assert [row[name] for name in ("outgoing_bytes", "rebalances", "records_failed", "records_lag")] == [
        *(1000.0, 2.0, 7.0, 5000.0)
    ]


def lags_of(chosen: random.Random) -> list[float | None]:
    """The lag of each of twelve windows: growing, steady, noisy, rarely pushed; huge numbers too."""
    scale, growth, noise = (
        chosen.choice([0.0, 1e3, 1e9]),
        chosen.choice([0.0, 100.0, -7.0]),
        chosen.choice([0.0, 300.0]),
    )
    is_rare = chosen.choice([True, False])
    return [
        None if is_rare and chosen.random() < 0.7 else scale + growth * window + noise * chosen.random()
        for window in range(12)
    ]


def trend_of(lags: list[float | None]) -> float | None:
    """The slope of the line through the last ten windows, unless there are too few or they are no line."""
    known = [(float(window), lag) for window, lag in enumerate(lags) if lag is not None and window >= len(lags) - 10]
    if len(known) < 3:
        return None
    windows, values = zip(*known, strict=True)
    if min(values) < max(values) and correlation(windows, values) ** 2 < 0.5:
        return None
    return linear_regression(windows, values).slope


def test_lag_per_minute_is_the_line_through_the_last_ten_windows(clickhouse: RunningClickHouse) -> None:
    """Of whichever windows are asked for: the trend of a window does not depend on where the range begins."""
    chosen = random.Random(7)
    drawn = {f"consumer-{number}": lags_of(chosen) for number in range(200)}
    pushed = [
        (name, START + window * WINDOW_MS + 5000, lag)
        for name, lags in drawn.items()
        for window, lag in enumerate(lags)
        if lag is not None
    ]
    names, times, values = map(list, zip(*pushed, strict=True))
    metric = pa.array(metrics_of("records_lag") * len(pushed))
    table = points("trend", len(pushed), metric=metric, client_id=names, ts=pa.array(times, TIME), value=values)
    clickhouse.store.insert("points", table, token="trend")
    for first, after in ((0, 12), (11, 12)):
        bounds = {"from_ms": START + first * WINDOW_MS, "to_ms": START + after * WINDOW_MS, "window_ms": WINDOW_MS}
        with connected(clickhouse.writer) as client:
            rows = list(client.query(SIGNALS, {**bounds, "cluster": "trend", "telemetry": 1}).named_results())
        assert {row["window_start_ms"] for row in rows} <= set(range(bounds["from_ms"], bounds["to_ms"], WINDOW_MS))
        last = [row for row in rows if row["window_start_ms"] == START + 11 * WINDOW_MS]
        found = {row["client_id"]: (row["records_lag"], row["lag_per_min"]) for row in last}
        expected = {name: (lags[11], trend_of(lags)) for name, lags in drawn.items() if lags[11] is not None}
        assert found == {
            name: (lag, trend if trend is None else pytest.approx(trend, rel=1e-6, abs=1e-3))
            for name, (lag, trend) in expected.items()
        }
        assert {trend is None for _, trend in expected.values()} == {True, False}
