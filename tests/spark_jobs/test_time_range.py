"""Time ranges: tiling, slices, accepted spellings, and those that --stream computes one after another."""

import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.clickhouse.source import NothingToReadError
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import MERGED_MS, TimeRange, affected, between, parse_duration, parse_time, since


@given(st.integers(10**12, 2 * 10**12), st.integers(60, 3 * 86_400), st.integers(1, 60))
def test_since_covers_the_duration_plus_less_than_a_window(now_ms: int, duration_s: int, window_min: int) -> None:
    when = since(f"{duration_s}s", now_ms, 60 * window_min)
    assert when.from_ms % when.window_ms == 0
    assert 0 <= now_ms - duration_s * 1000 - when.from_ms < when.window_ms
    assert 0 <= now_ms - when.to_ms < 60_000


def test_between_starts_on_the_window_grid_and_ends_with_the_last_whole_minute() -> None:
    when = between("2026-11-20T10:00:07Z", "2026-11-20T10:05:07+00:00", 60)
    assert (when.from_ms, when.to_ms) == (1_795_168_800_000, 1_795_169_100_000)


def test_earlier_start_is_on_the_window_grid() -> None:
    when = TimeRange(600_000, 900_000, 60)
    assert when.earlier(450_001) == TimeRange(420_000, 900_000, 60)
    assert when.earlier(700_000) == when


@given(st.sets(st.integers(0, 1439), max_size=40), st.integers(0, 3600), st.sampled_from([60, 120, 300]))
def test_affected_ranges_cover_what_late_windows_change(minutes: set[int], reach_s: int, window_s: int) -> None:
    when = TimeRange(86_400_000, 86_400_000 + 900_000, window_s)
    starts = [minute * 60_000 - minute * 60_000 % when.window_ms for minute in minutes]
    ranges = affected(starts, when, reach_s * 1000)
    assert (ranges[-1].to_ms, ranges[-1].earlier(when.from_ms)) == (when.to_ms, ranges[-1])
    for earlier, later in itertools.pairwise(ranges):
        assert later.from_ms - earlier.to_ms >= MERGED_MS
    for start_ms in starts:
        until_ms = min(start_ms + when.window_ms + reach_s * 1000, when.from_ms)
        assert any(part.from_ms <= start_ms and until_ms <= part.to_ms for part in ranges)
    assert all(part == ranges[-1] or part.from_ms in starts for part in ranges)


def test_durations_have_units_and_times_are_utc_unless_they_say_otherwise() -> None:
    assert [parse_duration(text) for text in ("90s", "15m", "2h", "7d")] == [90, 900, 7200, 604_800]
    times = ("2026-11-20T10:00:00Z", "2026-11-20 10:00", "2026-11-20T12:00:00+02:00", "1795168800", "1795168800000")
    assert {parse_time(text) for text in times} == {1_795_168_800_000}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_duration, text) for text in ("", "15", "-5m", "1.5h", "15 minutes", "m", "9x")),
        *((parse_time, text) for text in ("", "yesterday", "2026-13-01", "nan", "1e9", "9" * 400)),
    ],
)
def test_invalid_text_is_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read the (duration|time)"):
        parse(text)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "window_s"),
    [
        *((0, 0, 60), (60_000, 0, 60), (0, 60_000, 0), (500, 60_000, 60), (-60_000, 60_000, 60)),
        *((0, 367 * 86_400_000, 60), (0, 90_000, 60), (0, 60_000, 30), (0, 90_000, 90), (0, 7_200_000, 7200)),
    ],
)
def test_invalid_range_is_refused(from_ms: int, to_ms: int, window_s: int) -> None:
    with pytest.raises(ValueError, match=r"range|window|whole minute"):
        TimeRange(from_ms, to_ms, window_s)


def test_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match=r"range|year|nothing"):
        between("99999999999999", "1", 60)


MINUTE = 60_000
START = 1000 * 86_400_000


def stream_ranges(monkeypatch: pytest.MonkeyPatch, when: TimeRange, takes_s: list[float]) -> list[tuple[float, ...]]:
    """Of each batch: from, to and now in minutes since START. Time passes only while the stream waits or computes.
    `takes_s`: how long each takes; 0: nothing to read."""
    now_s = when.to_ms / 1000 + 1
    batches: list[tuple[float, ...]] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def job(options: HeadroomOptions) -> quota_headroom.LevelReport:
        nonlocal now_s
        assert (options.recent, options.stream) == (True, False)
        if len(batches) == len(takes_s):
            raise StopIteration  # ends the stream
        times = (options.when.from_ms, options.when.to_ms, now_s * 1000)
        batches.append(tuple((at_ms - START) / MINUTE for at_ms in times))
        now_s += takes_s[len(batches) - 1]
        if not takes_s[len(batches) - 1]:
            raise NothingToReadError("nothing")
        return quota_headroom.LevelReport([])

    monkeypatch.setattr(quota_headroom, "session", lambda *_: nullcontext())
    monkeypatch.setattr(quota_headroom, "run", job)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "time", lambda: now_s)
    with pytest.raises(StopIteration):
        quota_headroom.stream(HeadroomOptions("", when, stream=True))
    monkeypatch.undo()
    return batches


def test_each_window_is_computed_five_seconds_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = stream_ranges(monkeypatch, TimeRange(START, START + 10 * MINUTE), [3.0, 0.0, 3.0])
    assert first[:2] == (0, 10)
    assert [other[:2] for other in others] == [(10, 11), (11, 12)]
    assert [other[2] for other in others] == pytest.approx([11 + 5 / 60, 12 + 5 / 60])


def test_windows_that_ended_meanwhile_are_one_range_and_one_that_had_not_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = stream_ranges(monkeypatch, TimeRange(START, START + 10 * MINUTE), [250.0, 3.0, 3.0])
    assert [batch[:2] for batch in batches] == [(0, 10), (10, 14), (14, 15)]
    batches = stream_ranges(monkeypatch, TimeRange(START, START + 7 * MINUTE, 300), [3.0, 3.0, 3.0])
    assert [batch[:2] for batch in batches] == [(0, 7), (5, 10), (10, 15)]
