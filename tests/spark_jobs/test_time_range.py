"""Time ranges: tiling, slices and accepted spellings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_parse_duration_units() -> None:
    assert [parse_duration(text) for text in ("90s", "15m", "2h", "7d")] == [90, 900, 7200, 604_800]


def test_parse_time_defaults_to_utc() -> None:
    expected = 1_795_168_800_000
    for text in ("2026-11-20T10:00:00Z", "2026-11-20 10:00", "2026-11-20T12:00:00+02:00", "1795168800"):
        assert parse_time(text) == expected


@pytest.mark.parametrize("text", ["", "15", "-5m", "1.5h", "15 minutes", "m", "9x"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "nan", "1e9", "9" * 400])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_time(text)


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
