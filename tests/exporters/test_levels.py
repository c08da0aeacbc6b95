"""Muted time, levels and the order of brokers."""

from __future__ import annotations

import random

import pytest

from exporters.levels import Level, MutedTime, level_of, worst_broker_order


def test_long_throttle_mutes_all_minutes_it_covers() -> None:
    muted = MutedTime()
    muted.announce(50_000, 90_000)
    minutes = [muted.muted_ms(start, start + 60_000) for start in (0, 60_000, 120_000, 180_000)]
    assert minutes == [10_000, 60_000, 20_000, 0]
    assert (muted.until_ms, muted.longest_ms) == (140_000, 90_000)


def test_overlapping_throttles_count_once() -> None:
    draw = random.Random(1)
    for _ in range(50):
        announced = [(draw.randrange(1000), draw.randrange(-5, 200)) for _ in range(draw.randrange(20))]
        muted = MutedTime()
        for ts_ms, throttle_ms in announced:
            muted.announce(ts_ms, throttle_ms)
        milliseconds = {ms for ts_ms, throttle_ms in announced for ms in range(ts_ms, ts_ms + throttle_ms)}
        from_ms, to_ms = sorted((draw.randrange(1200), draw.randrange(1200)))
        assert muted.muted_ms(from_ms, to_ms) == len(milliseconds & set(range(from_ms, to_ms)))


def test_old_spans_are_dropped() -> None:
    muted = MutedTime(keep_ms=1000)
    for ts_ms in range(0, 100_000, 20):
        muted.announce(ts_ms, 10)
    assert len(muted._spans) <= 52
    assert muted.muted_ms(99_000, 100_000) == 500


@pytest.mark.parametrize(
    ("utilization", "muted_ms", "limit_known", "level"),
    [
        (0.1, 600, True, Level.THROTTLED),
        (0.1, 599, True, Level.CRITICAL),
        (0.95, 0, True, Level.CRITICAL),
        (0.949, 0, True, Level.WARN),
        (0.80, 0, True, Level.WARN),
        (0.60, 0, True, Level.WATCH),
        (0.59, 0, True, Level.OK),
        (None, 0, True, Level.OK),
        (None, 0, False, Level.UNKNOWN),
        (None, 600, False, Level.THROTTLED),
    ],
)
def test_level_of_utilization_and_muted_time(
    utilization: float | None, muted_ms: float, limit_known: bool, level: Level
) -> None:
    assert level_of(utilization, muted_ms, 60_000, limit_known=limit_known) == level


def test_worst_broker_order() -> None:
    brokers = [(0.5, 700.0, 4), (0.99, 500.0, 3), (0.99, 500.0, 2), (0.99, 0.0, 1), (None, 0.0, 0)]
    draw = random.Random(2)
    for _ in range(10):
        mixed = draw.sample(brokers, len(brokers))
        assert sorted(mixed, key=lambda b: worst_broker_order(b[0], b[1], 60_000, b[2]), reverse=True) == [
            brokers[0], brokers[2], brokers[1], brokers[3], brokers[4],
        ]  # fmt: skip
