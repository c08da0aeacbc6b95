"""When hours are rolled up, and in which slices."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from telemetry.ingest.rollups import Slice, TouchedHours, slices
from tests.telemetry.decode.payloads import NOW_MS
from tests.telemetry.ingest.bench import Bench, away


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
