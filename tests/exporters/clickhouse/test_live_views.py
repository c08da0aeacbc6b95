"""headroom_by_minute against the definitions of DECISIONS 19 in Python, over random rows; and the views of now."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

from exporters.clickhouse.minutes import COMPUTE_MINUTE
from exporters.clickhouse.store import Store
from exporters.levels import level_of, worst_broker_order
from exporters.model import UsageSample
from telemetry.ingest.arrow_tables import usage_table
from tests.kit.clickhouse import RunningClickHouse

pytestmark = pytest.mark.clickhouse

PRODUCER = "producer_byte_rate"
MINUTE_MS = 60_000


def write(store: Store, samples: list[UsageSample], token: str) -> None:
    store.insert("quota_usage", usage_table(samples, now_ms()), token=token)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def past_minute(ago: int) -> int:
    return now_ms() // MINUTE_MS * MINUTE_MS - ago * MINUTE_MS


def sample(cluster: str, ts_ms: int, rate: float, **more: Any) -> UsageSample:
    base = UsageSample(cluster, PRODUCER, ts_ms, "alice", "app", "", 1, 0, rate, 0.0, 0, "gateway")
    known: dict[str, Any] = {"gateway_id": "gw", "interval_ms": 1000, "limit": 1000.0, "limit_known": True}
    return base._replace(**{**known, "matched_entity": "user=alice", **more})


def verdicts(store: Store, cluster: str, from_ms: int) -> dict[tuple[str, str], dict[str, Any]]:
    names = ("user", "client_id", "broker_id", "level", "utilization", "utilization_p95", "muted_ms", "window_s")
    rows = store.query(
        f"SELECT {', '.join(names)} FROM headroom.headroom_by_minute"
        f" WHERE window_start = toDateTime({from_ms // 1000}, 'UTC') AND cluster = '{cluster}'"
    )
    return {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in rows}


class Truth(NamedTuple):
    broker_id: int
    level: str
    utilization: float | None
    utilization_p95: float | None
    muted_ms: float


def truth(samples: list[UsageSample], from_ms: int) -> dict[tuple[str, str], Truth]:
    """DECISIONS 19, straight from the text, for rows of one second each."""
    seconds: dict[Any, list[float]] = defaultdict(lambda: [0.0] * 60)
    muted: dict[Any, list[int]] = defaultdict(lambda: [0] * 60)
    buckets: dict[Any, Any] = {}
    for one in sorted(samples, key=lambda row: row.ts_ms):
        client = (one.user, one.client_id, one.broker_id)
        second = (one.ts_ms - from_ms) // 1000
        if 0 <= second < 60:
            shared = (one.bucket_user, one.bucket_client_id) if one.limit is not None else client[:2]
            buckets[client] = (shared, one.broker_id, one.limit, one.limit_known)
            seconds[client][second] += one.rate
            muted[client][second] = max(muted[client][second], one.muted_ms)
    found: dict[tuple[str, str], tuple[Any, Truth]] = {}
    for client, bucket in buckets.items():
        rates = [
            sum(values) for values in zip(*(seconds[who] for who in buckets if buckets[who] == bucket), strict=True)
        ]
        limit = bucket[2]
        mean, p95 = sum(rates) / 60, sorted(rates)[min(59, math.floor(0.95 * 60))]
        most = None if limit is None else max(mean, p95) / limit
        muted_ms = sum(muted[client])
        order = worst_broker_order(most, muted_ms, MINUTE_MS, client[2])
        level = level_of(most, muted_ms, MINUTE_MS, limit_known=bucket[3]).name.lower()
        share, share_p95 = (None, None) if limit is None else (mean / limit, p95 / limit)
        verdict = Truth(client[2], level, share, share_p95, muted_ms)
        if client[:2] not in found or order > found[client[:2]][0]:
            found[client[:2]] = (order, verdict)
    return {name: verdict for name, (_, verdict) in found.items()}


def random_samples(draw: random.Random, cluster: str, from_ms: int) -> list[UsageSample]:
    rows = []
    for user in ("alice", "bob"):
        shared = draw.random() < 0.5
        limit = draw.choice([None, 500.0, 1000.0])
        for client_id in ("a", "b"):
            for broker_id in (1, 2):
                level = draw.uniform(0, 700)
                throttled = draw.random() < 0.4
                for second in range(-30, 60):
                    if draw.random() < 0.7:
                        throttle = draw.randrange(1500) if throttled and draw.random() < 0.05 else 0
                        more = {
                            "user": user, "client_id": client_id, "broker_id": broker_id, "limit": limit,
                            "throttle_ms": float(throttle), "bucket_user": user,
                            "bucket_client_id": "" if shared else client_id,
                        }  # fmt: skip
                        rows += [
                            sample(
                                cluster,
                                from_ms + second * 1000,
                                level * draw.uniform(0.8, 1.2),
                                gateway_id=name,
                                muted_ms=draw.randrange(1 + min(throttle, 1000)),
                                **more,
                            )
                            for name in ("gw-1", "gw-2")[: draw.randint(1, 2)]
                        ]
    return rows


def test_levels_of_random_rows_match_the_definition(clickhouse: RunningClickHouse) -> None:
    draw = random.Random(20)
    from_ms = past_minute(5)
    levels = set()
    for number in range(12):
        cluster = f"random-{number}"
        rows = random_samples(draw, cluster, from_ms)
        write(clickhouse.store, rows, cluster)
        write(clickhouse.store, rows[:50], f"{cluster}-again")  # duplicate rows count once
        expected = truth(rows, from_ms)
        found = verdicts(clickhouse.store, cluster, from_ms)
        assert found.keys() == expected.keys()
        for name, right in expected.items():
            got = found[name]
            assert (got["broker_id"], got["level"]) == (right.broker_id, right.level), (name, got, right)
            assert got["muted_ms"] == right.muted_ms
            for column, value in (("utilization", right.utilization), ("utilization_p95", right.utilization_p95)):
                assert got[column] == (None if value is None else pytest.approx(value)), (name, column)
            levels.add(right.level)
    assert levels >= {"throttled", "ok", "critical"}


def test_samples_without_interval_count_for_the_sampled_seconds(clickhouse: RunningClickHouse) -> None:
    from_ms = past_minute(4)
    rows = [sample("bare", from_ms + second * 1000, 850.0, interval_ms=0) for second in range(0, 60, 10)]
    write(clickhouse.store, rows, "bare")
    assert verdicts(clickhouse.store, "bare", from_ms)["alice", "app"]["level"] == "warn"


def test_throttle_time_of_a_sample_spans_the_following_minutes(
    clickhouse: RunningClickHouse,
) -> None:
    from_ms = past_minute(6)
    announced = sample("bare-muted", from_ms + 50_000, 1.0, interval_ms=0, throttle_ms=90_000.0, source="jmx")
    again = announced._replace(ts_ms=from_ms + 55_000, throttle_ms=1_000.0)
    write(clickhouse.store, [announced, again], "bare-muted")
    found = [verdicts(clickhouse.store, "bare-muted", from_ms + minute * MINUTE_MS) for minute in range(4)]
    assert [rows["alice", "app"]["muted_ms"] for rows in found[:3]] == [10_000, 60_000, 20_000]
    assert found[3] == {}


def test_rows_of_ten_seconds_cover_ten_seconds(clickhouse: RunningClickHouse) -> None:
    from_ms = past_minute(4)
    rows = [sample("coarse", from_ms + second * 1000, 700.0, interval_ms=10_000) for second in range(0, 60, 10)]
    write(clickhouse.store, rows, "coarse")
    found = verdicts(clickhouse.store, "coarse", from_ms)["alice", "app"]
    assert (found["level"], found["utilization"], found["utilization_p95"]) == ("watch", 0.7, 0.7)


def test_open_window_is_divided_by_elapsed_seconds(clickhouse: RunningClickHouse) -> None:
    from_ms = past_minute(0)
    seconds = max(1, (now_ms() - from_ms) // 1000)
    write(clickhouse.store, [sample("part", from_ms + second * 1000, 900.0) for second in range(seconds)], "part")
    found = verdicts(clickhouse.store, "part", from_ms)["alice", "app"]
    assert found["utilization"] == pytest.approx(0.9 * seconds / found["window_s"])
    assert seconds <= found["window_s"] <= 60


def test_invalid_rates_are_ignored_and_unknown_limits_are_reported(clickhouse: RunningClickHouse) -> None:
    from_ms = past_minute(4)
    rows = [sample("bad", from_ms + 1000 * n, rate) for n, rate in enumerate((math.nan, math.inf, -1.0, 1e16))]
    rows.append(sample("bad", from_ms, 10.0, client_id="new", limit=None, limit_known=False))
    rows.append(sample("bad", from_ms, 0.0, client_id="blocked", limit=0.0))
    write(clickhouse.store, rows, "bad")
    found = verdicts(clickhouse.store, "bad", from_ms)
    assert {name: row["level"] for name, row in found.items()} == {
        ("alice", "new"): "unknown", ("alice", "blocked"): "ok",
    }  # fmt: skip


def test_limit_that_never_throttles_has_no_utilization(clickhouse: RunningClickHouse) -> None:
    """producer_byte_rate = Long.MAX_VALUE means unlimited; such a client does not vanish from the view."""
    from_ms = past_minute(4)
    limits = {"most": float(2**63 - 1), "inf": math.inf, "above": 2e15, "nan": math.nan, "negative": -1.0}
    rows = [sample("unlimited", from_ms, 10.0, client_id=name, limit=limit) for name, limit in limits.items()]
    write(clickhouse.store, rows, "unlimited")
    found = verdicts(clickhouse.store, "unlimited", from_ms)
    assert {name: (row["level"], row["utilization"]) for (_, name), row in found.items()} == {
        "most": ("ok", None), "inf": ("ok", None), "above": ("ok", None),
    }  # fmt: skip


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


def write_and_read_now(store: Store, cluster: str, end_ms: int) -> dict[str, list[Any]]:
    """Three minutes of two clients, the computation of the newest whole minute, and the views of now."""
    seconds = [end_ms - 1000 * ago for ago in range(180)]
    write(store, [sample(cluster, ts_ms, 850.0) for ts_ms in seconds], cluster)
    slow = [
        sample(cluster, ts_ms, 100.0, client_id="slow", throttle_ms=float(muted_ms), muted_ms=muted_ms)
        for ts_ms in seconds
        for muted_ms in (500 if ts_ms % 10_000 == 0 else 0,)
    ]
    write(store, slow, f"{cluster}-slow")
    store.command(COMPUTE_MINUTE, {"window_s": end_ms // MINUTE_MS * 60 - 60})
    return {
        view: sorted(store.query(f"SELECT {columns} FROM headroom.{view} WHERE cluster = '{cluster}'"))
        for view, columns in _NOW.items()
    }


def test_live_views_list_current_clients(clickhouse: RunningClickHouse) -> None:
    end_ms, found = 0, {}
    while now_ms() - end_ms > 15_000:  # once more if that took so long that the minute was the newest no more
        end_ms = now_ms() // 1000 * 1000
        found = write_and_read_now(clickhouse.store, f"now-{end_ms}", end_ms)
    assert found == {
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
            clickhouse.store.command(COMPUTE_MINUTE, {"window_s": start_ms // 1000})
            asked = f"SELECT level FROM headroom.headroom_now WHERE cluster = '{cluster}'"
            levels.append([str(level) for (level,) in clickhouse.store.query(asked)])
    assert levels[-2:] == [["ok"], ["warn"]]
