"""usage_1m on a real server: minutes are computed when they are missing or rows arrived late, and no others."""

import random
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.usage_minutes import SampleTable, complete, last_seconds, minutes, store_minute
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import compute_levels
from tests.kit.usage_rows import MINUTE, START, changing, drawn, insert, insert_limits, stored_minute
from tests.kit.windows_reference import Row

pytestmark = pytest.mark.clickhouse
# Services of other tests write to the same server, in the minutes in which they run.
BEFORE_ALL_TESTS = time.time_ns() // 1_000_000 // MINUTE * MINUTE - 150 * MINUTE


def texts(table: pa.Table, cluster: str) -> list[str]:
    """Rows of a cluster, each as text that tells equal ones; elements of lists in any order, sums to nine digits."""
    kept = [name for name in table.column_names if name not in ("newest", "computed_at")]
    return sorted(
        str([_plain(row[name], ordered=name == "rates") for name in kept])
        for row in table.to_pylist()
        if row["cluster"] == cluster
    )


def _plain(value: Any, *, ordered: bool) -> Any:
    if isinstance(value, list):
        return [f"{n:.9g}" for n in (value if ordered else sorted(value))]
    return f"{value:.9g}" if isinstance(value, float) else value


def fresh(store: ClickHouse, cluster: str, from_ms: int, to_ms: int) -> list[str]:
    """Rows as the statement makes them now, all minutes at once."""
    span = {"from_ms": from_ms, "to_ms": to_ms, "source": "gateway", "cluster": cluster, "computed_ms": 1}
    return texts(store.table(minutes(SampleTable.ALL), span), cluster)


def stored(store: ClickHouse, cluster: str, starts_ms: Sequence[int]) -> list[str]:
    return sorted(text for start_ms in starts_ms for text in texts(stored_minute(store, start_ms), cluster))


@pytest.mark.parametrize("seed", range(6))
def test_late_rows_and_duplicates_are_in_the_stored_minutes(clickhouse: RunningClickHouse, seed: int) -> None:
    random_ = random.Random(seed)
    store, cluster = ClickHouse((clickhouse.writer,)), f"late-{seed}"
    rows = drawn(random_) if seed % 2 else changing(random_)
    starts_ms = range(START, START + 3 * MINUTE, MINUTE)
    late = random_.sample(rows, len(rows) // 10)
    insert(clickhouse.store, [row for row in rows if row not in late], cluster)
    assert complete(store, "gateway", START, START + 3 * MINUTE) > 0
    assert stored(store, cluster, starts_ms) == fresh(store, cluster, START, START + 3 * MINUTE)
    insert(clickhouse.store, late, cluster)
    insert(clickhouse.store, rows, cluster)  # once more, as after a crash
    assert complete(store, "gateway", START, START + 3 * MINUTE) > 0
    assert stored(store, cluster, starts_ms) == fresh(store, cluster, START, START + 3 * MINUTE)
    assert complete(store, "gateway", START, START + 3 * MINUTE) == 0


def test_a_late_throttle_time_mutes_the_minutes_after_it(clickhouse: RunningClickHouse) -> None:
    store, start = ClickHouse((clickhouse.writer,)), START + 86_400_000
    insert(clickhouse.store, [Row(start + 3 * MINUTE, "u", "c", 1, 5.0)], "late-muting", bare=True)
    complete(store, "gateway", start, start + 5 * MINUTE)
    insert(clickhouse.store, [Row(start + 50_000, "u", "c", 1, 5.0, 170_000.0)], "late-muting", bare=True)
    assert complete(store, "gateway", start, start + 5 * MINUTE) == 1
    found = [stored_minute(store, start + n * MINUTE).to_pylist() for n in range(5)]
    spans = [[(row["muted_at_ms"], row["muted_ms"]) for row in rows] for rows in found]
    assert spans == [[([50_000 - n * MINUTE], [170_000])] for n in range(4)] + [[]]


def test_a_row_that_is_known_under_another_quota_replaces_the_minute(clickhouse: RunningClickHouse) -> None:
    store, start = ClickHouse((clickhouse.writer,)), START + 2 * 86_400_000
    row = Row(start, "u", "c", 1, 5.0, 0.0, "g", 1000)
    for limit in (None, 10.0, 20.0):
        known = row._replace(limit=limit, limit_known=int(limit is not None), bucket_user="u")
        insert(clickhouse.store, [known], "replaced")
        complete(store, "gateway", start, start + MINUTE)
        found = stored_minute(store, start).to_pylist()
        assert [(one["limit"], one["samples"]) for one in found] == [(-1.0 if limit is None else limit, 1)]


def test_jobs_do_not_compute_again_what_serve_computed(clickhouse: RunningClickHouse) -> None:
    store, start = ClickHouse((clickhouse.writer,)), BEFORE_ALL_TESTS
    rows = [Row(start + at * 1000, "u", "c", 1, 80.0, 0.0, "g", 1000) for at in range(120)]
    insert(clickhouse.store, rows, "served")
    for start_ms in (start, start + MINUTE):
        store_minute(store, start_ms)
    assert stored(store, "served", (start, start + MINUTE)) == fresh(store, "served", start, start + 2 * MINUTE)
    assert complete(store, "gateway", start, start + 2 * MINUTE) == 0
    insert(clickhouse.store, [rows[0]._replace(client_id="late")], "served")
    store_minute(store, start)
    assert stored(store, "served", (start, start + MINUTE)) == fresh(store, "served", start, start + 2 * MINUTE)
    assert complete(store, "gateway", start, start + 2 * MINUTE) == 1
    assert complete(store, "gateway", start, start + 2 * MINUTE) == 0


_ROW = Row(7000, "u", "c", 1, 80.0, 0.0, "g", 1000, limit=90.0, limit_known=1, bucket_user="u")
STORED_TWICE = {
    "nothing": [_ROW],
    "a sample": [_ROW, _ROW],
    "a sample with another limit": [_ROW, _ROW._replace(limit=70.0)],
    "a sample with another interval": [_ROW, _ROW._replace(interval_ms=10_000)],
    "two samples of a second": [_ROW, _ROW._replace(at_ms=7400, interval_ms=400)],
    "two gateways": [_ROW, _ROW._replace(client_id="d"), _ROW._replace(gateway_id="h")],
}


@pytest.mark.parametrize("name", STORED_TWICE)
def test_serve_counts_samples_that_were_stored_twice_once(clickhouse: RunningClickHouse, name: str) -> None:
    start = BEFORE_ALL_TESTS - (30 + list(STORED_TWICE).index(name)) * MINUTE
    store, rows = ClickHouse((clickhouse.writer,)), STORED_TWICE[name]
    for row in [*rows, rows[0]._replace(client_id="beside", at_ms=9000)]:
        insert(clickhouse.store, [row._replace(at_ms=start + row.at_ms)], "twice")
    computed = texts(store_minute(store, start), "twice")
    assert computed == fresh(store, "twice", start, start + MINUTE) == stored(store, "twice", [start])
    assert len(computed) == (4 if name == "two gateways" else 2)


def test_bad_rows_are_counted_by_cluster(clickhouse: RunningClickHouse) -> None:
    store, start = ClickHouse((clickhouse.writer,)), START + 3 * 86_400_000
    for cluster, rates in (("bad-1", [float("nan"), 1.0]), ("bad-2", [-1.0, 1e16, 2.0])):
        rows = [Row(start + at * 1000, "u", "c", 1, rate) for at, rate in enumerate(rates)]
        insert(clickhouse.store, rows, cluster)
    complete(store, "gateway", start, start + MINUTE)
    marks = store.rows(
        "SELECT rows, bad_rows FROM usage_1m_windows FINAL WHERE window_start = fromUnixTimestamp({at:Int64})",
        {"at": start // 1000},
    )
    assert marks == [{"rows": 2, "bad_rows": {"bad-1": 1, "bad-2": 2}}]


def test_the_last_seconds_begin_within_a_minute(clickhouse: RunningClickHouse) -> None:
    minute_ms = BEFORE_ALL_TESTS - 15 * MINUTE
    store, start = ClickHouse((clickhouse.writer,)), minute_ms + 13_000
    rows = [Row(start + at * 1000, "u", "c", 1, float(at), 0.0, "g", 1000) for at in range(-5, 65)]
    insert(clickhouse.store, rows, "last-seconds")
    (row,) = [row for row in last_seconds(store, start).to_pylist() if row["cluster"] == "last-seconds"]
    assert (row["rates"], row["samples"]) == ([float(at) for at in range(60)], 60)


def test_rows_of_other_collectors_say_what_a_gateway_adds_to_its_own(clickhouse: RunningClickHouse) -> None:
    """Such rows have no limit, which the history of quotas has, and an interval, but no muted time."""
    start = time.time_ns() // 1_000_000 // MINUTE * MINUTE - 45 * MINUTE
    insert_limits(clickhouse.store, "others", start - MINUTE, {"u": 100.0})
    rows = [Row(start + 1000 * at, "u", "c", 1, 50.0, 300.0 * (at == 9), interval_ms=1000) for at in range(60)]
    insert(clickhouse.store, rows, "others")
    compute_levels(clickhouse.store, start // 1000)
    stored_levels = ClickHouse((clickhouse.writer,)).rows(
        "SELECT level, limit, muted_ms, matched_entity FROM headroom_minutes WHERE cluster = 'others'"
    )
    assert stored_levels == [{"level": "critical", "limit": 100.0, "muted_ms": 300, "matched_entity": "user=u"}]
