"""Rollups: when hours are computed and in which slices; repeated computations agree with the raw points."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from exporters.clickhouse.connection import StoreOptions
from exporters.clickhouse.store import TransientWriteError
from telemetry.ingest.rollups import MS_PER_HOUR, ROLL_UP, Slice, TouchedHours, number_of_series, slices
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.points import TIME, points
from tests.telemetry.decode.payloads import NOW_MS
from tests.telemetry.ingest.conftest import Bench, away


def test_slices_cover_all_series_ids_once() -> None:
    for series, count in ((0, 1), (1_000_000, 1), (1_000_001, 2), (12_000_000, 12)):
        ranges = [part.parameters() for part in slices(7, series)]
        assert len(ranges) == count
        assert {part["hour_s"] for part in ranges} == {25_200}
        assert ranges[0]["first_id"] == 0
        assert ranges[-1]["last_id"] == 2**64 - 1
        assert all(part["last_id"] + 1 == after["first_id"] for part, after in pairwise(ranges))


def test_hour_is_due_a_delay_after_its_first_new_point() -> None:
    hours = TouchedHours([], 1000)
    assert not hours.is_due(0)
    hours.touch([7], 100)
    hours.touch([7, 8], 900)
    assert [hours.is_due(now_ms) for now_ms in (1099, 1100)] == [False, True]
    assert hours.begin(0) == (7, 0, 1)
    hours.computed(0, 1100)
    assert [hours.is_due(now_ms) for now_ms in (1899, 1900)] == [False, True]
    hours.touch([7], 1900)
    assert hours.as_list() == [8, 7]


def test_computation_uses_at_most_a_twentieth_of_the_time() -> None:
    hours = TouchedHours([1], 1000)
    hours.begin(2_000_000)
    hours.computed(took_ms=2000, now_ms=100_000)
    assert [hours.is_due(now_ms) for now_ms in (137_999, 138_000)] == [False, True]


def test_clock_that_is_set_back_delays_nothing() -> None:
    day_ms = 86_400_000
    hours = TouchedHours([], 1000)
    hours.touch([1], day_ms)
    hours.touch([2], 500)  # a day less
    assert [hours.is_due(now_ms) for now_ms in (1_499, 1_500)] == [False, True]
    hours.failed(day_ms)
    assert not hours.is_due(day_ms + 999)
    assert [hours.is_due(now_ms) for now_ms in (5, 6)] == [False, True]


def test_touched_hours_are_rolled_up_and_survive_a_crash(bench: Bench) -> None:
    hour = Slice(NOW_MS // 3_600_000, 0, 1).parameters()
    bench.push()
    bench.step()
    later = iter(range(NOW_MS + 60_000, NOW_MS + 10_000_000, 100_000))
    assert not bench.ingester.roll_up(lambda: NOW_MS + 59_999)
    assert bench.ingester.roll_up(lambda: next(later))
    assert not bench.ingester.roll_up(lambda: next(later) + 10_000_000)
    bench.restart()  # the result was not recorded yet
    assert bench.ingester.roll_up(lambda: next(later))
    bench.push()
    bench.step()
    bench.restart()
    bench.store.fail = away
    assert bench.ingester.as_dict()["hours_to_roll_up"] == 1
    assert bench.ingester.roll_up(lambda: NOW_MS)
    bench.store.fail = lambda table: None
    assert not bench.ingester.roll_up(lambda: NOW_MS + 59_999)
    assert bench.ingester.roll_up(lambda: NOW_MS + 60_000)
    assert bench.ingester.as_dict()["hours_to_roll_up"] == 0
    assert bench.store.commands == [hour] * 3


def computes_first_of_three_slices(bench: Bench) -> int:
    """Of the hour of one push, which it returns."""
    bench.push()
    bench.step()
    bench.store.series = 2_500_000
    assert bench.ingester.roll_up(lambda: NOW_MS + 60_000)
    return NOW_MS // 3_600_000


def test_hour_of_many_series_is_computed_in_slices_between_batches(bench: Bench) -> None:
    hour = computes_first_of_three_slices(bench)
    assert bench.store.commands == [Slice(hour, 0, 3).parameters()]
    bench.push(received_at_ms=NOW_MS + 1)
    bench.step(NOW_MS + 60_000)  # its points are in the rest only: the hour is computed again
    for later_ms in (60_000, 60_001):
        assert bench.ingester.roll_up(partial(int, NOW_MS + later_ms))
        assert bench.ingester.as_dict()["hours_to_roll_up"] == 1
    assert not bench.ingester.roll_up(lambda: NOW_MS + 119_999)
    for _ in range(3):
        assert bench.ingester.roll_up(lambda: NOW_MS + 120_000)
    assert bench.store.commands == [Slice(hour, number, 3).parameters() for number in (0, 1, 2)] * 2
    assert bench.ingester.as_dict()["hours_to_roll_up"] == 0


def test_interrupted_hour_starts_again_at_its_first_slice(bench: Bench) -> None:
    hour = computes_first_of_three_slices(bench)
    bench.push(received_at_ms=NOW_MS - 7_200_000)  # the commit saves that the hour has not been finished
    bench.step()
    bench.restart()
    assert bench.ingester.roll_up(lambda: NOW_MS)
    assert bench.store.commands == [Slice(hour, 0, 3).parameters()] * 2


def test_hour_is_rolled_up_again_until_replicas_agree(bench: Bench) -> None:
    bench.push()
    bench.step()
    bench.store.agree = False
    assert bench.ingester.roll_up(lambda: NOW_MS + 60_000)
    assert bench.ingester.as_dict()["hours_to_roll_up"] == 1
    bench.store.agree = True
    assert not bench.ingester.roll_up(lambda: NOW_MS + 119_999)
    assert bench.ingester.roll_up(lambda: NOW_MS + 120_000)
    assert bench.ingester.as_dict()["hours_to_roll_up"] == 0


HOUR = 498_667  # ends where November 2026 ends
COLUMNS = "series_id, toUnixTimestamp(bucket), toString(temporality), min, max, sum, count, last, points"


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


class Point(NamedTuple):
    """A row of `points`."""

    series_id: int
    ts_ms: int
    value: float
    flags: int = 0


def _insert(store: QueriedStore, rows: list[Point], token: str) -> None:
    columns = {
        "ts": pa.array([point.ts_ms for point in rows], TIME),
        "series_id": pa.array([point.series_id for point in rows], pa.uint64()),
        "value": [point.value for point in rows],
        "flags": pa.array([point.flags for point in rows], pa.uint8()),
    }
    store.insert("points", points("c", len(rows), **columns), token=token)


def _compute(store: QueriedStore, hour: int, of: int) -> list[Any]:
    for number in range(of):
        store.command(ROLL_UP, Slice(hour, number, of).parameters())
    return store.query(f"SELECT {COLUMNS} FROM headroom.client_metrics_1h WHERE cluster = 'c' ORDER BY ALL")


def expected(pushed: list[Point]) -> list[Any]:
    """By plain Python."""
    groups: dict[tuple[int, int], dict[int, Point]] = defaultdict(dict)
    for point in pushed:
        groups[point.series_id, point.ts_ms // MS_PER_HOUR][point.ts_ms] = point
    rows = []
    for (series_id, hour), by_time in groups.items():
        measured = [p.value for _, p in sorted(by_time.items()) if not p.flags & 1 and not math.isnan(p.value)]
        low, high, last = (min(measured), max(measured), measured[-1]) if measured else (math.nan,) * 3
        temporality = "delta" if series_id == 1 else "unspecified"
        rows.append((series_id, hour * 3600, temporality, low, high, sum(measured), len(measured), last, len(by_time)))
    return sorted(rows)


@pytest.mark.clickhouse
def test_repeated_rollups_match_raw_points(clickhouse: RunningClickHouse) -> None:
    rng = random.Random(1)
    times = rng.sample(range(HOUR * MS_PER_HOUR, (HOUR + 2) * MS_PER_HOUR), 600)
    times[:3] = [HOUR * MS_PER_HOUR, (HOUR + 1) * MS_PER_HOUR - 1, (HOUR + 1) * MS_PER_HOUR]
    values = (math.nan, -0.5, 0.0, 1e300, 3.0, 7.25)
    pushed = [
        Point(n % 4 * (1 << 62) + 1, ts_ms, rng.choice(values), rng.choice((0, 0, 0, 1, 2)))
        for n, ts_ms in enumerate(times)
    ]
    pushed += [Point(9, times[0], math.nan), Point(10, times[0], math.inf)]
    store = clickhouse.store
    for table in ("points", "series", "points_1h"):  # the points are of 2026
        store.query(f"ALTER TABLE headroom.{table} REMOVE TTL")
    store.query("ALTER TABLE headroom.points MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1")
    series: dict[str, Any] = {"series_id": pa.array([1], pa.uint64()), "temporality": pa.array(["delta"])}
    store.insert("series", pa.table(series), token="series")
    for batch, so_far in ((pushed[:400], pushed[:400]), (pushed[400:], pushed)):
        _insert(store, batch, f"batch-{len(so_far)}")
        _insert(store, batch[:3], f"again-{len(so_far)}")  # as if they had been pushed again
        _compute(store, HOUR, 1)
        once = _compute(store, HOUR + 1, 3)
        computed = _compute(store, HOUR, 2)  # the first hour again
        assert _same(once, computed)
        assert _same(computed, expected(so_far))


MANY = 600_000  # series
LIMIT = 120 << 20  # bytes: a tenth of them takes 40 MiB, all of them take 240
MANY_POINTS = """
INSERT INTO headroom.points
    (cluster, metric, ts, principal, client_id, client_instance_id, series_id, value, received_at)
SELECT 'many', toString(number % 12), toDateTime({hour:UInt32} * 3600, 'UTC'), 'p', toString(intDiv(number, 12)),
    toUUID('00000000-0000-0000-0000-000000000000'), cityHash64(number), number, now64(3)
FROM numbers({many:UInt64})
"""
MANY_SERIES = """
INSERT INTO headroom.series (series_id, cluster, temporality, last_seen)
SELECT cityHash64(number), 'many', 'delta', now64(3) FROM numbers({many:UInt64})
"""


class _LittleMemory(StoreOptions):
    """Limits the memory of each query."""

    def client_settings(self) -> dict[str, str]:
        return {"max_memory_usage": str(LIMIT)}


@pytest.mark.clickhouse
def test_memory_of_a_computation_does_not_depend_on_the_number_of_series(
    clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = int(time.time()) // 3600 - 1
    for sql in (MANY_POINTS, MANY_SERIES):
        clickhouse.store.command(sql, {"hour": hour, "many": MANY})
    store = QueriedStore(clickhouse.writer, options=_LittleMemory())
    with pytest.raises(TransientWriteError, match="MEMORY_LIMIT_EXCEEDED"):
        store.command(ROLL_UP, Slice(hour, 0, 1).parameters())
    monkeypatch.setattr("telemetry.ingest.rollups._SERIES_PER_SLICE", MANY // 10)
    for part in slices(hour, number_of_series(store)):
        store.command(ROLL_UP, part.parameters())
    rows = "SELECT count(), sum(points), sum(sum), uniqExact(temporality) FROM headroom.client_metrics_1h"
    totals = clickhouse.store.query(f"{rows} WHERE cluster = 'many'")
    assert totals == [(MANY, MANY, MANY * (MANY - 1) / 2, 1)]
    store.close()


def _same(rows: list[Any], expected: list[Any]) -> bool:
    return len(rows) == len(expected) and all(
        a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-12)) or (a != a and b != b)
        for left, right in zip(rows, expected, strict=True)
        for a, b in zip(left, right, strict=True)
    )
