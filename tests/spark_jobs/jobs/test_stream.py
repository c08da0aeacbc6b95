"""The ranges that --stream computes one after another. Time passes only while it waits or computes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest

from spark_jobs.clickhouse.source import NothingToReadError
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange

MINUTE = 60_000
START = 1000 * 86_400_000


class EnoughError(Exception):
    """Ends a stream."""


def ranges(monkeypatch: pytest.MonkeyPatch, when: TimeRange, takes_s: list[float]) -> list[tuple[float, ...]]:
    """Of each batch: from, to and now in minutes since START. `takes_s`: how long each takes; 0: nothing to read."""
    now_s = when.to_ms / 1000 + 1
    batches: list[tuple[float, ...]] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def job(options: HeadroomOptions) -> list[dict[str, Any]]:
        nonlocal now_s
        assert (options.recent, options.stream) == (True, False)
        if len(batches) == len(takes_s):
            raise EnoughError
        times = (options.when.from_ms, options.when.to_ms, now_s * 1000)
        batches.append(tuple((at_ms - START) / MINUTE for at_ms in times))
        now_s += takes_s[len(batches) - 1]
        if not takes_s[len(batches) - 1]:
            raise NothingToReadError("nothing")
        return []

    monkeypatch.setattr(quota_headroom, "session", lambda *_: nullcontext())
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "time", lambda: now_s)
    with pytest.raises(EnoughError):
        quota_headroom.stream(HeadroomOptions("", when, stream=True), job)
    monkeypatch.undo()
    return batches


def test_each_window_is_computed_five_seconds_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = ranges(monkeypatch, TimeRange(START, START + 10 * MINUTE), [3.0, 0.0, 3.0])
    assert first[:2] == (0, 10)
    assert [other[:2] for other in others] == [(10, 11), (11, 12)]
    assert [other[2] for other in others] == pytest.approx([11 + 5 / 60, 12 + 5 / 60])


def test_windows_that_ended_meanwhile_are_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = ranges(monkeypatch, TimeRange(START, START + 10 * MINUTE), [250.0, 3.0, 3.0])
    assert [batch[:2] for batch in batches] == [(0, 10), (10, 14), (14, 15)]


def test_a_window_that_had_not_ended_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = ranges(monkeypatch, TimeRange(START, START + 7 * MINUTE, 300), [3.0, 3.0, 3.0])
    assert [batch[:2] for batch in batches] == [(0, 7), (5, 10), (10, 15)]
