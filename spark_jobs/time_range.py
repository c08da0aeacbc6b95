"""The time range of a job: [from, to), tiled by windows aligned to the epoch. No clock."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from quota_metrics.verdict.window import MINUTE_MS

_DURATION = re.compile(r"(\d+)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_DAYS = 366
_FIRST_IN_MS = 1e11  # as in Grafana's URLs; in seconds it is the year 5138
LONGEST_WINDOW_S = 3600
DAY_MS = 86_400_000
STEP_MS = 300_000  # of the history of buckets, and of what is forecast from it
MERGED_MS = 3_600_000  # a range of its own costs a run as much as about an hour more


@dataclass(frozen=True, slots=True)
class TimeRange:
    """[from_ms, to_ms), tiled by windows of `window_s` aligned to the epoch; the last window may be incomplete. It ends
    with a minute, because what a minute of usage_1m has sent cannot be divided.

    Raises ValueError unless `from_ms` is the start of a window and before `to_ms`, which is the end of a minute, and
    the window has whole minutes, an hour at most.
    """

    from_ms: int
    to_ms: int
    window_s: int = 60

    def __post_init__(self) -> None:
        if not 60 <= self.window_s <= LONGEST_WINDOW_S or self.window_s % 60:
            raise ValueError(f"a window of {self.window_s} s: it has whole minutes, and at most {LONGEST_WINDOW_S} s")
        if self.to_ms - self.from_ms > _LONGEST_DAYS * DAY_MS:
            raise ValueError(f"the range is longer than {_LONGEST_DAYS} days")
        if self.from_ms % self.window_ms or self.from_ms < 0:
            raise ValueError(f"the range must begin at a whole window of the epoch, not at {self.from_ms} ms")
        if self.to_ms <= self.from_ms:
            raise ValueError(f"no whole minute lies between {_text(self.from_ms)} and {_text(self.to_ms)}")
        if self.to_ms % MINUTE_MS:
            raise ValueError(f"the range must end at a whole minute, not at {self.to_ms} ms")

    @property
    def window_ms(self) -> int:
        return self.window_s * 1000

    def earlier(self, from_ms: int) -> Self:
        """The range extended back to the window that contains `from_ms`; unchanged if that is not earlier."""
        return replace(self, from_ms=max(min(self.from_ms, from_ms - from_ms % self.window_ms), 0))


def affected(starts_ms: Iterable[int], when: TimeRange, reach_ms: int) -> list[TimeRange]:
    """Disjoint ranges, ordered, with each window of `starts_ms` (all before `when`) and what begins within `reach_ms`
    after it. Ranges less than MERGED_MS apart are one. The last is `when`, extended back to a range that is near."""
    step_ms = when.window_ms
    reach_ms = step_ms + -(-reach_ms // step_ms) * step_ms
    ranges: list[TimeRange] = []
    for start_ms in sorted(starts_ms):
        if ranges and start_ms - ranges[-1].to_ms < MERGED_MS:
            ranges[-1] = replace(ranges[-1], to_ms=min(start_ms + reach_ms, when.from_ms))
        else:
            ranges.append(replace(when, from_ms=start_ms, to_ms=min(start_ms + reach_ms, when.from_ms)))
    if ranges and when.from_ms - ranges[-1].to_ms < MERGED_MS:
        return [*ranges[:-1], when.earlier(ranges[-1].from_ms)]
    return [*ranges, when]


def since(duration: str, now_ms: int, window_s: int) -> TimeRange:
    """The range that ends with the last whole minute, and starts with the window that contains `duration` ago. Raises
    ValueError when the duration is invalid or the window is too short."""
    start_ms = now_ms - parse_duration(duration) * 1000
    return _on_grid(start_ms, now_ms, window_s)


def between(start: str, end: str, window_s: int) -> TimeRange:
    """The range from the window that contains `start` to the last whole minute before `end`. Raises ValueError when one
    of them is invalid."""
    return _on_grid(*parse_times(start, end), window_s)


def _on_grid(start_ms: int, end_ms: int, window_s: int) -> TimeRange:
    grid_ms = max(window_s, 1) * 1000
    return TimeRange(start_ms - start_ms % grid_ms, end_ms - end_ms % MINUTE_MS, window_s)


def parse_duration(text: str) -> int:
    """`90s`, `15m`, `2h`, `7d` in seconds. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"cannot read the duration {text!r}: write 90s, 15m, 2h or 7d")
    if not int(match[1]):
        raise ValueError(f"the duration {text!r} must be above 0")
    return int(match[1]) * _SECONDS[match[2]]


def parse_times(start: str, end: str) -> tuple[int, int]:
    """Both in ms. Raises ValueError when one of them is invalid, or `end` is not after `start`."""
    start_ms, end_ms = parse_time(start), parse_time(end)
    if end_ms <= start_ms:
        raise ValueError(f"nothing lies between {_text(start_ms)} and {_text(end_ms)}")
    return start_ms, end_ms


def parse_time(text: str) -> int:
    """ISO 8601 (UTC unless it says otherwise), or seconds or milliseconds since the epoch, in ms. Raises ValueError
    otherwise."""
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return round(float(text) * (1000 if float(text) < _FIRST_IN_MS else 1))
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(f"cannot read the time {text!r}: write 2026-11-20T10:00:00Z or epoch seconds") from None


def _text(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat()
