"""Which windows a batch of --stream computes."""

from __future__ import annotations

from spark_jobs.jobs.stream import changed
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS
from spark_jobs.transforms.utilization import LOOKBACK_WINDOWS

MINUTE = 60_000
NOW = 1000 * 86_400_000 + 30_000
NEWEST = NOW - NOW % MINUTE
REACH = THROTTLE_LOOKBACK_MS + LOOKBACK_WINDOWS * MINUTE


def test_current_window_is_computed_up_to_now() -> None:
    (when,) = changed([NEWEST - MINUTE, NEWEST], 60, NOW)
    assert (when.from_ms, when.to_ms) == (NEWEST - MINUTE, NOW)


def test_late_row_changes_the_windows_that_remember_it() -> None:
    late = NEWEST - 600 * MINUTE
    (when,) = changed([late], 60, NOW)
    assert (when.from_ms, when.to_ms) == (late, late + MINUTE + REACH)


def test_one_old_row_does_not_recompute_what_lies_between() -> None:
    old = NEWEST - 1000 * MINUTE
    first, last = changed([old, NEWEST], 60, NOW)
    assert (first.from_ms, first.to_ms) == (old, old + MINUTE + REACH)
    assert (last.from_ms, last.to_ms) == (NEWEST, NOW)


def test_row_of_the_future_is_computed() -> None:
    (when,) = changed([NEWEST + 10 * MINUTE], 60, NOW)
    assert (when.from_ms, when.to_ms) == (NEWEST + 10 * MINUTE, NEWEST + 11 * MINUTE)


def test_nothing_changes_without_input() -> None:
    assert changed([], 60, NOW) == []
