"""Each computation of an hour uses all raw points, so repeated computations agree with the raw points."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from exporters.clickhouse.store import Store
from telemetry.ingest.rollups import MS_PER_HOUR, ROLL_UP, TouchedHours, roll_up_parameters
from tests.kit.clickhouse import running_clickhouse

HOUR = 498_667  # ends where November 2026 ends
COLUMNS = "series_id, toUnixTimestamp(bucket), toString(temporality), min, max, sum, count, last, points"


class Point(NamedTuple):
    """A row of `points`."""

    series_id: int
    ts_ms: int
    value: float
    flags: int = 0


def test_hour_is_due_a_delay_after_its_first_new_point() -> None:
    hours = TouchedHours([], 1000)
    assert hours.due(0) is None
    hours.touch([7], 100)
    hours.touch([7, 8], 900)
    assert [hours.due(now_ms) for now_ms in (1099, 1100)] == [None, 7]
    hours.computed(7, 0, 1100)
    assert [hours.due(now_ms) for now_ms in (1899, 1900)] == [None, 8]
    hours.touch([7], 1900)
    assert hours.as_list() == [8, 7]


def test_restored_hours_are_due_at_once() -> None:
    assert TouchedHours([5, 3], 1000).due(1_000_000) == 5


def test_computation_uses_at_most_a_twentieth_of_the_time() -> None:
    hours = TouchedHours([1, 2], 1000)
    hours.computed(1, took_ms=2000, now_ms=100_000)
    assert [hours.due(now_ms) for now_ms in (137_999, 138_000)] == [None, 2]


def test_failed_hour_is_retried_after_a_delay() -> None:
    hours = TouchedHours([1], 1000)
    hours.failed(100_000)
    assert [hours.due(now_ms) for now_ms in (100_999, 101_000)] == [None, 1]
    assert len(hours) == 1


def _insert(store: Store, points: list[Point], token: str) -> None:
    count = len(points)
    times = pa.array([point.ts_ms for point in points], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    who = {"cluster": "c", "metric": "m", "principal": "p", "client_id": "a"}
    columns: dict[str, Any] = {name: pa.array([text] * count).dictionary_encode() for name, text in who.items()}
    columns |= {
        "client_instance_id": pa.array([bytes(16)] * count, pa.binary(16)),
        "ts": times,
        "series_id": pa.array([point.series_id for point in points], pa.uint64()),
        "value": pa.array([point.value for point in points], pa.float64()),
        "flags": pa.array([point.flags for point in points], pa.uint8()),
        "received_at": times,
    }
    store.insert("points", pa.table(columns), token=token)


def _compute(store: Store, hour: int) -> list[Any]:
    store.command(ROLL_UP, roll_up_parameters(hour))
    return [tuple(row) for row in store.query(f"SELECT {COLUMNS} FROM headroom.client_metrics_1h ORDER BY ALL")]


def _batches(store: Store, batches: list[list[Point]]) -> list[list[Any]]:
    """After each batch: the rollups after both hours were computed, and the first one again."""
    for table in ("points", "series", "points_1h"):  # the points are of 2026
        store.query(f"ALTER TABLE headroom.{table} REMOVE TTL")
    store.query("ALTER TABLE headroom.points MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1")
    series = {"series_id": pa.array([1], pa.uint64()), "temporality": pa.array(["delta"])}
    store.insert("series", pa.table(series), token="series")
    found = []
    for number, points in enumerate(batches):
        _insert(store, points, f"batch-{number}")
        _insert(store, points[:3], f"again-{number}")  # as if they had been pushed again
        _compute(store, HOUR)
        once = _compute(store, HOUR + 1)
        found.append(_compute(store, HOUR))
        assert _same(once, found[-1])
    return found


def expected(points: list[Point]) -> list[Any]:
    """By plain Python."""
    groups = defaultdict(dict)
    for point in points:
        groups[point.series_id, point.ts_ms // MS_PER_HOUR][point.ts_ms] = point
    rows = []
    for (series_id, hour), by_time in groups.items():
        measured = [p.value for _, p in sorted(by_time.items()) if not p.flags & 1 and not math.isnan(p.value)]
        low, high, last = (min(measured), max(measured), measured[-1]) if measured else (math.nan,) * 3
        temporality = "delta" if series_id == 1 else "unspecified"
        rows.append((series_id, hour * 3600, temporality, low, high, sum(measured), len(measured), last, len(by_time)))
    return sorted(rows)


@pytest.mark.clickhouse
def test_repeated_rollups_match_raw_points(tmp_path: Path) -> None:
    rng = random.Random(1)
    times = rng.sample(range(HOUR * MS_PER_HOUR, (HOUR + 2) * MS_PER_HOUR), 600)
    times[:3] = [HOUR * MS_PER_HOUR, (HOUR + 1) * MS_PER_HOUR - 1, (HOUR + 1) * MS_PER_HOUR]
    values = (math.nan, -0.5, 0.0, 1e300, 3.0, 7.25)
    points = [Point(n % 4, ts_ms, rng.choice(values), rng.choice((0, 0, 0, 1, 2))) for n, ts_ms in enumerate(times)]
    points += [Point(9, times[0], math.nan), Point(10, times[0], math.inf)]
    batches = [points[:400], points[400:]]
    with running_clickhouse(tmp_path) as clickhouse:
        after_first, after_second = _batches(clickhouse.store, batches)
    assert _same(after_first, expected(batches[0]))
    assert _same(after_second, expected(points))


def _same(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(
        a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-12)) or (a != a and b != b)
        for left, right in zip(found, wanted, strict=True)
        for a, b in zip(left, right, strict=True)
    )
