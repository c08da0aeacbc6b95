"""The difference of counts is 0 while one count lags behind another, and not 0 when a record is missing."""

from __future__ import annotations

import random

from headroom.server.storage import CountDifference


def run(difference: CountDifference, seconds: int, *, missing: int = 0, start: int = 0, lag: float = 1.0) -> int:
    """A thousand records a second; the worker's count is up to a second behind or ahead of the parent's."""
    rng = random.Random(7)
    for second in range(start, start + seconds):
        received = 1_000 * second
        accounted = round(received + 1_000 * rng.uniform(-lag, lag)) - missing
        difference.sample(float(second), received, accounted)
    return difference.value


def test_lagging_counts_make_no_difference() -> None:
    assert run(CountDifference(), 60) == 0


def test_missing_records_are_reported_at_rest() -> None:
    difference = CountDifference()
    run(difference, 60)
    for second in range(60, 90):
        difference.sample(float(second), 60_000, 59_997)
    assert difference.value == 3
    for second in range(90, 120):
        difference.sample(float(second), 60_000, 60_002)
    assert difference.value == -2


def test_many_missing_records_are_reported_under_load() -> None:
    difference = CountDifference()
    assert run(difference, 60, missing=50_000) > 30_000


def test_unreported_counts_of_a_killed_process_make_no_difference() -> None:
    difference = CountDifference()
    run(difference, 30)
    difference.resynchronize()
    assert run(difference, 60, missing=-700, start=30) == 0
    for second in range(90, 120):
        difference.sample(float(second), 90_000, 40_000)
    assert difference.value > 30_000
