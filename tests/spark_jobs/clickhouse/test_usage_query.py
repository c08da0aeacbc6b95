"""The usage query on a real server: random rows against a reference implementation, and hand-made cases."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.clickhouse.usage_query import SETTINGS, store_minutes, usage
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.recent import FRIDAY_MS
from tests.spark_jobs.clickhouse.naive_usage import Row, Verdict, verdicts

pytestmark = pytest.mark.clickhouse

MINUTE = 60_000
START = FRIDAY_MS
PRODUCE = "producer_byte_rate"
_numbers = itertools.count(1)


def insert(store: Any, rows: list[Row], cluster: str, *, bare: bool = False) -> None:
    """`bare`: without the columns that other collectors do not fill."""
    table: dict[str, Any] = {
        "cluster": pa.array([cluster] * len(rows)),
        "quota_key": pa.array([PRODUCE] * len(rows)),
        "ts": pa.array([row.at_ms for row in rows], pa.timestamp("ms", "UTC")),
        "user": pa.array([row.user for row in rows]),
        "client_id": pa.array([row.client_id for row in rows]),
        "ip": pa.array([""] * len(rows)),
        "broker_id": pa.array([row.broker_id for row in rows], pa.int32()),
        "bytes": pa.array([0] * len(rows), pa.uint64()),
        "rate": pa.array([row.rate for row in rows]),
        "throttle_ms": pa.array([row.throttle_ms for row in rows]),
        "throttled_requests": pa.array([0] * len(rows), pa.uint64()),
        "source": pa.array(["gateway"] * len(rows)),
    }
    if not bare:
        table |= {
            "gateway_id": pa.array([row.gateway_id for row in rows]),
            "interval_ms": pa.array([row.interval_ms for row in rows], pa.uint32()),
            "muted_ms": pa.array([row.muted_ms for row in rows], pa.uint32()),
            "limit": pa.array([row.limit for row in rows], pa.float64()),
            "limit_known": pa.array([row.limit_known for row in rows], pa.uint8()),
            "bucket_user": pa.array([row.bucket_user for row in rows]),
            "bucket_client_id": pa.array([row.bucket_client_id for row in rows]),
        }
    store.insert("quota_usage", pa.table(table), token=f"{cluster}/{next(_numbers)}")


def query(
    clickhouse: RunningClickHouse, cluster: str, from_ms: int, to_ms: int, window_s: int = 60, *, stored: bool = False
) -> list[dict[str, Any]]:
    parameters = {
        "from_ms": from_ms,
        "to_ms": to_ms,
        "window_ms": window_s * 1000,
        "source": "gateway",
        "cluster": cluster,
        "quota_key": PRODUCE,
        "run": "none",
        "computed_ms": next(_numbers),
    }
    with clickhouse.writer.connect() as client:
        if stored:
            client.command(store_minutes(), parameters)
        return list(client.query(f"{usage(window_s, stored=stored)} {SETTINGS}", parameters).named_results())


def found(rows: list[dict[str, Any]]) -> dict[Any, Verdict]:
    return {
        (row["user"], row["client_id"], row["broker_id"], row["window_start_ms"]): Verdict(
            row["samples"],
            row["usage_avg"],
            row["usage_p95"],
            row["group_usage"],
            row["group_p95"],
            row["group_last"],
            row["shared_with"],
            row["muted_ms"],
            row["limit"],
            row["state"],
        )
        for row in rows
    }


_HOSTILE = [math.nan, math.inf, -math.inf, -5.0, 1e16, 1e308]


def drawn(random_: random.Random) -> list[Row]:
    """Rows from two gateways for clients of two users, whose user-level quota may be unknown."""
    rows: dict[Any, Row] = {}
    shape = random_.choice(["bare", "seconds", "ten seconds", "mixed"])
    for user, client_id in itertools.product(("u1", "u2"), ("a", "b", "c")):
        known = user == "u1"
        cadence = {"bare": 0, "seconds": 1000, "ten seconds": 10_000}.get(shape, random_.choice([0, 1000, 10_000]))
        step_ms = random_.choice([cadence, cadence]) or random_.choice([1000, 7000, 10_000])
        for at in range(START - 11 * MINUTE, START + 3 * MINUTE, step_ms):
            if random_.random() < 0.5:
                continue
            limit, limit_known, bucket_client_id = (500.0, 1, "") if known else (None, 0, client_id)
            at_ms = at + (random_.randrange(1000) if cadence == 1000 and random_.random() < 0.1 else 0)
            row = Row(
                at_ms,
                user,
                client_id,
                random_.randint(1, 2),
                random_.choice(_HOSTILE) if random_.random() < 0.03 else float(random_.randrange(1000)),
                random_.choice([0.5, 20.0, 700.0, 90_000.0, math.nan, -3.0]) if random_.random() < 0.02 else 0.0,
                random_.choice(["g1", "g2"]),
                cadence,
                limit,
                limit_known,
                user,
                bucket_client_id,
                random_.choice([7, 300, 1000, 4_000_000_000]) if random_.random() < 0.05 else 0,
            )
            rows[row.at_ms, user, client_id, row.broker_id, row.gateway_id] = row
    return list(rows.values())


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_random_rows_match_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    random_ = random.Random(seed)
    cluster, rows = f"random-{seed}", drawn(random_)
    insert(clickhouse.store, rows, cluster)
    insert(clickhouse.store, rows, cluster)  # duplicates, as after a crash
    window_s, to_ms = random_.choice([60, 30, 90]), START + random_.choice([180_000, 150_000, 157_300])
    from_ms = START - START % (window_s * 1000)
    reported = found(query(clickhouse, cluster, from_ms, to_ms, window_s))
    expected = verdicts(rows, from_ms, to_ms, window_s * 1000)
    assert reported.keys() == expected.keys()
    for key, verdict in expected.items():
        assert reported[key][:1] + reported[key][6:] == verdict[:1] + verdict[6:], key
        assert reported[key][1:6] == pytest.approx(verdict[1:6], rel=1e-9), key
    if window_s == 60:
        whole = START + 120_000
        assert found(query(clickhouse, cluster, from_ms, whole, stored=True)) == found(
            query(clickhouse, cluster, from_ms, whole)
        )


def test_throttle_time_mutes_the_windows_it_covers(clickhouse: RunningClickHouse) -> None:
    insert(clickhouse.store, [Row(START + 50_000, "u", "c", 1, 5.0, 90_000.0)], "long", bare=True)
    reported = {row["window_start_ms"]: row["muted_ms"] for row in query(clickhouse, "long", START, START + 300_000)}
    assert reported == {START: 10_000, START + MINUTE: 60_000, START + 2 * MINUTE: 20_000}
    later = {r["window_start_ms"]: r["muted_ms"] for r in query(clickhouse, "long", START + MINUTE, START + 300_000)}
    assert later == {START + MINUTE: 60_000, START + 2 * MINUTE: 20_000}


def test_muted_time_is_the_maximum_over_gateways(clickhouse: RunningClickHouse) -> None:
    """Throttled several times a second, at two gateways; a throttle time beyond the muted time does not count as
    muted."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0, 700.0, gateway, 1000, 100.0, 1, "u", "c", muted)
        for gateway, muted in (("g1", 300), ("g2", 900))
        for at in range(10)
    ]
    insert(clickhouse.store, rows, "several")
    reported = query(clickhouse, "several", START, START + 2 * MINUTE)
    assert [(row["window_start_ms"], row["muted_ms"], row["throttle_ms"]) for row in reported] == [
        (START, 9000.0, 700.0)
    ]


@pytest.mark.parametrize("step_s", [1, 10])
def test_rows_of_other_collectors_are_averaged_at_any_interval(clickhouse: RunningClickHouse, step_s: int) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0) for at in range(0, 60, step_s)]
    insert(clickhouse.store, rows, f"bare-{step_s}", bare=True)
    (row,) = query(clickhouse, f"bare-{step_s}", START, START + MINUTE)
    assert (row["usage_avg"], row["usage_p95"], row["group_p95"], row["state"]) == (80.0, 80.0, 80.0, "unknown")


def test_memory_of_long_windows_does_not_grow_by_the_square_of_their_length(clickhouse: RunningClickHouse) -> None:
    """A row a minute of 200 clients, in windows of five minutes: 2,400 arrays of 300 seconds, 6 MB of each kind."""
    cluster, minutes = "long-windows", 60
    rows = [
        Row(START + at * MINUTE, "u", f"c{client}", 1, 80.0, 0.0, "g", MINUTE, 100.0, 1, "u", f"c{client}")
        for client in range(200)
        for at in range(minutes)
    ]
    insert(clickhouse.store, rows, cluster)
    query(clickhouse, cluster, START, START + minutes * MINUTE, stored=True)
    bounds = {"from_ms": START, "to_ms": START + minutes * MINUTE, "window_ms": 300_000, "run": "none"}
    with clickhouse.writer.connect() as client:
        found = client.query(
            f"{usage(300, stored=True)} {SETTINGS}, max_memory_usage = 500000000",
            {**bounds, "source": "gateway", "cluster": cluster, "quota_key": PRODUCE},
        ).result_rows
    assert len(found) == 200 * minutes // 5


def test_limit_change_within_a_window_splits_it(clickhouse: RunningClickHouse) -> None:
    """A client at 0.8 of each of two limits has a utilisation of 0.8, not 7.4."""
    rows = [
        Row(START + at * 1000, "u", "c", 1, 80.0 if at < 55 else 8.0, 0.0, "g", 1000, limit, 1, "u", "c")
        for at, limit in ((at, 100.0 if at < 55 else 10.0) for at in range(60))
    ]
    insert(clickhouse.store, rows, "split")
    (row,) = query(clickhouse, "split", START, START + MINUTE)
    assert row["group_usage"] / row["limit"] == pytest.approx(0.8)
    assert row["group_p95"] / row["limit"] == pytest.approx(0.8)


@pytest.mark.parametrize("limit", [float(2**63 - 1), 1.1e15, math.inf])
def test_limit_that_never_throttles_counts_as_none(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START + at * 1000, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c") for at in range(60)]
    insert(clickhouse.store, rows, f"unlimited-{limit}")
    reported = query(clickhouse, f"unlimited-{limit}", START, START + MINUTE)
    assert [(row["state"], row["limit"], row["usage_avg"]) for row in reported] == [("none", None, 80.0)]
    assert found(reported) == verdicts(rows, START, START + MINUTE, MINUTE)


@pytest.mark.parametrize("limit", [math.nan, -math.inf, -1.0])
def test_row_with_invalid_limit_is_ignored(clickhouse: RunningClickHouse, limit: float) -> None:
    rows = [Row(START, "u", "c", 1, 80.0, 0.0, "g", 1000, limit, 1, "u", "c")]
    insert(clickhouse.store, rows, f"bad-limit-{limit}")
    assert query(clickhouse, f"bad-limit-{limit}", START, START + MINUTE) == []
    assert verdicts(rows, START, START + MINUTE, MINUTE) == {}


def test_invalid_utf8_names_are_replaced(clickhouse: RunningClickHouse) -> None:
    with clickhouse.writer.connect() as client:
        client.command(
            "INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, rate, source)"
            f" VALUES ('odd', 'producer_byte_rate', toDateTime64({START // 1000 + 1}, 3), 'u', unhex('ff41'), 1, 5,"
            " 'gateway')"
        )
    (row,) = query(clickhouse, "odd", START, START + MINUTE)
    assert row["client_id"] == "\N{REPLACEMENT CHARACTER}A"
