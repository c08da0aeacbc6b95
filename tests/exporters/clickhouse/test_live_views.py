"""headroom_by_minute against the definitions of DECISIONS 19 in Python, over random rows; and the views of now."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from exporters.clickhouse.store import Store
from exporters.levels import level_of, worst_broker_order
from exporters.model import UsageSample
from telemetry.ingest.arrow_tables import limits_table, usage_table
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
        both = (None, None) if limit is None else (mean / limit, p95 / limit)
        most = None if limit is None else max(mean, p95) / limit
        muted_ms = sum(muted[client])
        order = worst_broker_order(most, muted_ms, MINUTE_MS, client[2])
        level = level_of(most, muted_ms, MINUTE_MS, limit_known=bucket[3]).name.lower()
        verdict = Truth(client[2], level, *both, muted_ms)
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


def test_live_views_list_current_clients(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    end_ms = now_ms() // 1000 * 1000
    seconds = [end_ms - 1000 * ago for ago in range(180)]
    write(store, [sample("now", ts_ms, 850.0) for ts_ms in seconds], "now")
    slow = [
        sample("now", ts_ms, 100.0, client_id="slow", throttle_ms=float(muted_ms), muted_ms=muted_ms)
        for ts_ms in seconds
        for muted_ms in (500 if ts_ms % 10_000 == 0 else 0,)
    ]
    write(store, slow, "now-slow")
    rows = store.query(
        "SELECT client_id, level, round(utilization, 2), window_s FROM headroom.headroom_now WHERE cluster = 'now'"
    )
    assert sorted(rows) == [("app", "warn", 0.85, 60), ("slow", "throttled", 0.1, 60)]
    assert {row[0] for row in store.query("SELECT client_id FROM headroom.near_limit WHERE cluster = 'now'")} == {
        "app",
        "slow",
    }
    ((name, muted_ms),) = store.query("SELECT client_id, muted_ms FROM headroom.throttled_now WHERE cluster = 'now'")
    assert (name, 2000 <= muted_ms <= 3500) == ("slow", True)
    assert len(store.query("SELECT * FROM headroom.quota_groups WHERE cluster = 'now'")) == 2
    assert store.query("SELECT user, clients, throttled FROM headroom.usage_by_user WHERE cluster = 'now'") == [
        ("alice", 2, 1)
    ]
    assert set(store.query("SELECT status FROM headroom.telemetry_coverage WHERE cluster = 'now'")) == {
        ("never asked",)
    }


def test_quota_change_recorded_by_two_gateways_is_listed_once(clickhouse: RunningClickHouse) -> None:
    from exporters.model import QuotaLimit

    rows = [(10, 5.0), (11, 5.0), (20, 6.0), (21, 6.0), (30, None), (31, None), (40, 5.0)]
    limits = [QuotaLimit("twice", "alice", "<default>", "", PRODUCER, ms, value) for ms, value in rows]
    clickhouse.store.insert("quota_limits", limits_table(limits, now_ms()), token="twice")
    found = clickhouse.store.query(
        "SELECT entity, toUnixTimestamp64Milli(changed_at), before, after FROM headroom.quota_changes"
        " WHERE cluster = 'twice' ORDER BY changed_at"
    )
    assert found == [
        ("user=alice, client-id=<default>", ms, before, after)
        for ms, before, after in ((10, None, 5.0), (20, 5.0, 6.0), (30, 6.0, None), (40, None, 5.0))
    ]


def instance(client_id: str, first_ago_s: int, last_ago_s: int, pushes: int, **more: Any) -> dict[str, Any]:
    base = {
        "cluster": "silent", "client_id": client_id, "principal": "alice", "software_name": "librdkafka",
        "software_version": "2.5.0", "first_seen": now_ms() - first_ago_s * 1000,
        "last_seen": now_ms() - last_ago_s * 1000,
        "terminated": 0, "pushes": pushes,
    }  # fmt: skip
    return base | more


def test_silent_clients_and_bad_versions_are_listed(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    rows = [
        instance("silent", 4000, 400, 37),  # each 100 s
        instance("pushes", 4000, 90, 40),
        instance("ended", 4000, 400, 37, terminated=1),
        instance("once", 4000, 400, 1),
        instance("muted", 4000, 400, 37),
    ]
    table = pa.Table.from_pylist(rows)
    for name in ("first_seen", "last_seen"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(pa.timestamp("ms", tz="UTC")))
    store.insert("client_instances", table, token="silent")
    second = now_ms() // 1000 * 1000
    write(store, [sample("silent", second, 0.0, client_id="muted", throttle_ms=60_000.0)], "muted")
    found = store.query(
        "SELECT client_id, round(usual_s), silent_s > 390 FROM headroom.silent_clients WHERE cluster = 'silent'"
    )
    assert found == [("silent", 100.0, 1)]
    bad = store.query("SELECT software_version, instances FROM headroom.bad_client_versions WHERE cluster = 'silent'")
    assert bad == [("2.5.0", 4)]  # instances seen within 15 minutes and not terminated: silent, pushes, once, muted
