"""What clients report, by window, from points on a real server."""

import random
from statistics import correlation, linear_regression

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse, Row
from quota_metrics.minutes.records import statement
from quota_metrics.minutes.surroundings import TELEMETRY_PARAMETERS, read_reports
from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.trend import lag_per_min
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.points import NOW_MS, TIME, points

pytestmark = pytest.mark.clickhouse

WINDOW_MS = 60_000
START = NOW_MS - NOW_MS % WINDOW_MS


def reported(clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int) -> list[Row]:
    """Each client in each minute."""
    span = {"from_ms": from_ms, "to_ms": to_ms, "offset_ms": 0, "window_ms": WINDOW_MS}
    parameters = {**TELEMETRY_PARAMETERS, **span, "cluster": cluster, "telemetry": 1}
    return ClickHouse((clickhouse.writer,)).rows(statement("telemetry"), parameters)


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
            (row,) = reported(clickhouse, "replayed", START, START + WINDOW_MS)
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
    less_behind = points(  # another instance, which does not push in the last window
        *("trend", len(drawn)),
        metric=pa.array(metrics_of("records_lag") * len(drawn)),
        client_id=list(drawn),
        client_instance_id=pa.array([bytes(16)] * len(drawn), pa.binary(16)),
        ts=pa.array([START + 9 * WINDOW_MS] * len(drawn), TIME),
        value=[1e12] * len(drawn),
    )
    clickhouse.store.insert("points", less_behind, token="less behind")
    for first, after in ((0, 12), (11, 12)):
        from_ms, to_ms = START + first * WINDOW_MS, START + after * WINDOW_MS
        rows = reported(clickhouse, "trend", from_ms, to_ms)
        assert {row["window_start_ms"] for row in rows} <= set(range(from_ms, to_ms, WINDOW_MS))
        last = [row for row in rows if row["window_start_ms"] == START + 11 * WINDOW_MS]
        trends = {
            row["client_id"]: (row["records_lag"], lag_per_min(row["lag_windows"], row["lag_records"])) for row in last
        }
        expected = {name: (lags[11], trend_of(lags)) for name, lags in drawn.items() if lags[11] is not None}
        assert trends == {
            name: (lag, trend if trend is None else pytest.approx(trend, rel=1e-6, abs=1e-3))
            for name, (lag, trend) in expected.items()
        }
        assert {trend is None for _, trend in expected.values()} == {True, False}


def test_sixty_seconds_that_begin_within_a_minute_have_their_own_telemetry(clickhouse: RunningClickHouse) -> None:
    """And the lag of windows before, which begin at the same second."""
    begin_ms = START + 20 * WINDOW_MS + 17_000
    times = [begin_ms - 1, begin_ms, begin_ms + WINDOW_MS - 1, begin_ms + WINDOW_MS]
    wait = points(
        *("within", 4),
        metric=pa.array(metrics_of("queue_time_ms") * 4),
        ts=pa.array(times, TIME),
        value=[9000.0, 700.0, 800.0, 9000.0],
    )
    lag = points(
        *("within", 3),
        metric=pa.array(metrics_of("records_lag") * 3),
        ts=pa.array([begin_ms - ago * WINDOW_MS for ago in range(3)], TIME),
        value=[5000.0, 4000.0, 3000.0],
    )
    for number, table in enumerate((wait, lag)):
        clickhouse.store.insert("points", table, token=f"within-{number}")
    client = tuple(table.column(name)[0].as_py() for name in ("cluster", "principal", "client_id"))
    reports = read_reports(ClickHouse((clickhouse.writer,)), begin_ms, telemetry=True)
    felt = reports.surroundings(client, observed=False, explains_onset=False).telemetry
    assert (felt.queue_time_ms, felt.records_lag) == (800.0, 5000.0)
    assert felt.lag_per_min == pytest.approx(1000.0)
    silent = read_reports(ClickHouse((clickhouse.writer,)), begin_ms, telemetry=False)
    assert silent.surroundings(client, observed=False, explains_onset=False).telemetry.queue_time_ms is None
