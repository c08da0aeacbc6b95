"""Muted time: rows, /metrics and what-if agree, and report what the rows' longest throttle times would miss."""

from __future__ import annotations

import random

from exporters.levels import MutedTime
from exporters.model import Exchange, UsageSample
from quota_metrics.config.entities import Alteration, entity_of
from quota_metrics.measure.muted_minute import MutedMinute
from quota_metrics.measure.usage_meter import UsageMeter
from quota_metrics.simulation.outcomes import Client, Seen, WhatIf

START_MS = 1_800_000_000_000
BUSY = ("producer_byte_rate", "alice", "app")


def measured(announced: list[tuple[int, int]], end_ms: int) -> list[UsageSample]:
    """The gateway's rows of (ts_ms, throttle_ms), which come in order, up to `end_ms`."""
    meter, rows, coming = UsageMeter("c"), [], list(announced)
    for now_ms in range(START_MS + 1000, end_ms + 1000, 1000):
        while coming and coming[0][0] < now_ms:
            ts_ms, throttle_ms = coming.pop(0)
            meter.exchange(Exchange("alice", "app", "", 1, 0, 1000, 50, throttle_ms, ts_ms))
        rows += meter.samples(now_ms)
    return rows


def what_if_ms(rows: list[UsageSample], end_ms: int) -> float:
    client = Client(*BUSY, 1)
    change = Alteration(entity_of({"user": "bob"}), {"producer_byte_rate": 1.0})
    asking = WhatIf([], change, [Seen(client, 1e6, 1000)], from_ms=START_MS, to_ms=end_ms)
    asking.replay(rows)
    (outcome,) = asking.outcomes()
    return outcome.before.throttled_ms


def test_repeated_throttles_within_a_second_add_up() -> None:
    """Ten throttles of 80 ms each second: muted 48 s of 60. The rows' longest throttle times give 4.8."""
    end_ms = START_MS + 60_000
    rows = measured([(ts_ms, 80) for ts_ms in range(START_MS, end_ms, 100)], end_ms)
    minute, by_longest = MutedMinute(), MutedTime()
    for row in rows:
        minute.add(row.ts_ms, row.muted_ms)
        by_longest.announce(row.ts_ms, row.throttle_ms)
    assert minute.muted_ms(end_ms) == what_if_ms(rows, end_ms) == 48_000
    assert by_longest.muted_ms(START_MS, end_ms) <= 4_800


def test_rows_metrics_and_what_if_match_the_set_of_muted_milliseconds() -> None:
    draw = random.Random(9)
    for _ in range(30):
        end_ms = START_MS + draw.randrange(1, 60) * 1000
        times = sorted(draw.randrange(START_MS, end_ms) for _ in range(draw.randrange(1, 200)))
        announced = [(ts_ms, int(draw.paretovariate(0.7) * 20)) for ts_ms in times]
        truth: set[int] = set()
        for ts_ms, throttle_ms in announced:
            truth.update(range(ts_ms, min(ts_ms + throttle_ms, end_ms)))
        rows, minute = measured(announced, end_ms), MutedMinute()
        for row in rows:
            minute.add(row.ts_ms, row.muted_ms)
        assert len(truth) == sum(row.muted_ms for row in rows) == what_if_ms(rows, end_ms) == minute.muted_ms(end_ms)


def test_seconds_leave_the_sliding_minute_individually() -> None:
    minute = MutedMinute()
    for second in range(1, 101):
        minute.add(second * 1000, second)
    assert minute.muted_ms(100_999) == sum(range(41, 101))
    assert minute.muted_ms(130_000) == sum(range(71, 101))
    assert minute.muted_ms(159_000) == 100
    assert minute.muted_ms(160_000) == 0
    minute.add(100_000, 7)  # the clock was set back
    assert minute.muted_ms(101_000) == 7
