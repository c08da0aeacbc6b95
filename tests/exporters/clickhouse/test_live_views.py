"""The views of minutes and of now, over hand-made rows; tests/spark_jobs/jobs/test_agreement.py draws them.

Which windows such rows make: tests/quota_metrics/minutes/test_windows.py.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from quota_metrics.verdict.client_signals import metrics_of
from tests.kit.clickhouse import QueriedStore, RunningClickHouse
from tests.kit.levels import compute_levels, now_ms, sample, write
from tests.kit.points import TIME, points

pytestmark = pytest.mark.clickhouse

MINUTE_MS = 60_000


def past_minute(ago: int) -> int:
    return now_ms() // MINUTE_MS * MINUTE_MS - ago * MINUTE_MS


def test_impact_is_what_the_client_reported_in_the_minute(clickhouse: RunningClickHouse) -> None:
    """Of the producer that pushed; who pushed nothing, or in another minute, has an unknown impact."""
    from_ms = past_minute(3)
    names = ("waits", "silent", "earlier")
    rows = [sample("felt", from_ms + 1000 * n, 900.0, client_id=name) for n in range(60) for name in names]
    write(clickhouse.store, rows, "felt")
    metric = pa.array([metrics_of("queue_time_ms")[0]] * 2)
    times = pa.array([from_ms + 30_000, from_ms - 1], TIME)
    users: dict[str, Any] = {"principal": ["alice"] * 2, "client_id": ["waits", "earlier"]}
    clickhouse.store.insert(
        "points", points("felt", 2, metric=metric, ts=times, value=[2500.0] * 2, **users), token="f"
    )
    compute_levels(clickhouse.store, from_ms // 1000)
    judged = clickhouse.store.query(
        "SELECT client_id, toString(level), impact, impact_reason FROM headroom.headroom_by_minute"
        f" WHERE cluster = 'felt' AND window_start = toDateTime({from_ms // 1000}, 'UTC') ORDER BY client_id"
    )
    assert judged == [
        ("earlier", "warn", "unknown", ""),
        ("silent", "warn", "unknown", ""),
        ("waits", "warn", "delayed", "records waited 2.5 s in the producer"),
    ]


def test_every_column_of_every_view_has_a_comment(clickhouse: RunningClickHouse) -> None:
    """Except views that repeat the columns of one table, which docs/tables.md describes."""
    repeating = ("client_software", "known_client_issues", "client_metrics_1h", "quota_utilization_committed")
    rows = clickhouse.store.query(
        "SELECT table, name FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database"
        f" AND t.name = c.table WHERE c.database = 'headroom' AND c.comment = '' AND t.engine = 'View'"
        f" AND c.table NOT IN {repeating}"
    )
    assert rows == []


_NOW = {
    "headroom_now": "client_id, level, round(utilization, 2), window_s",
    "near_limit": "client_id",
    "throttled_now": "client_id, muted_ms BETWEEN 2000 AND 3500",
    "quota_groups": "client_id",
    "usage_by_user": "user, clients, throttled",
    "telemetry_coverage": "client_id, status",
}


def write_and_read_now(store: QueriedStore, cluster: str, end_ms: int) -> dict[str, list[Any]]:
    """Three minutes of two clients, the computation of the newest whole minute, and the views of now."""
    seconds = [end_ms - 1000 * ago for ago in range(180)]
    write(store, [sample(cluster, ts_ms, 850.0) for ts_ms in seconds], cluster)
    slow = [
        sample(cluster, ts_ms, 100.0, client_id="slow", throttle_ms=float(muted_ms), muted_ms=muted_ms)
        for ts_ms in seconds
        for muted_ms in (500 if ts_ms % 10_000 == 0 else 0,)
    ]
    write(store, slow, f"{cluster}-slow")
    compute_levels(store, end_ms // MINUTE_MS * 60 - 60)
    return {
        view: sorted(store.query(f"SELECT {columns} FROM headroom.{view} WHERE cluster = '{cluster}'"))
        for view, columns in _NOW.items()
    }


def test_live_views_list_current_clients(clickhouse: RunningClickHouse) -> None:
    end_ms, judged = 0, {}
    while now_ms() - end_ms > 15_000:  # once more if that took so long that the minute was the newest no more
        end_ms = now_ms() // 1000 * 1000
        judged = write_and_read_now(clickhouse.store, f"now-{end_ms}", end_ms)
    assert judged == {
        "headroom_now": [("app", "warn", 0.85, 60), ("slow", "throttled", 0.1, 60)],
        "near_limit": [("app",), ("slow",)],
        "throttled_now": [("slow", 1)],
        "quota_groups": [("app",), ("slow",)],
        "usage_by_user": [("alice", 2, 1)],
        "telemetry_coverage": [("app", "never asked"), ("slow", "never asked")],
    }


def test_late_rows_replace_the_levels_of_the_whole_minute(clickhouse: RunningClickHouse) -> None:
    """Rows that arrive late replace the whole minute: a client that was below its limit is not shown twice."""
    start_ms, levels = 0, []
    while now_ms() - start_ms > 85_000:
        start_ms = past_minute(1)
        cluster = f"late-{now_ms()}"
        early = [sample(cluster, start_ms + 1000 * second, 300.0) for second in range(60)]
        for rows in (early, [row._replace(gateway_id="late", rate=600.0) for row in early]):
            write(clickhouse.store, rows, f"{cluster}-{rows[0].gateway_id}")
            compute_levels(clickhouse.store, start_ms // 1000)
            asked = f"SELECT level FROM headroom.headroom_now WHERE cluster = '{cluster}'"
            levels.append([str(level) for (level,) in clickhouse.store.query(asked)])
    assert levels[-2:] == [["ok"], ["warn"]]
