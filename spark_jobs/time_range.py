"""The time that a job looks at: [from, to), tiled by windows of equal length. No clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_DURATION = re.compile(r"(\d+)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_DAYS = 366
_SLICE_MS = 3_600_000  # what one Spark task reads at most; quota_usage is ordered by the hour


@dataclass(frozen=True, slots=True)
class TimeRange:
    """[from_ms, to_ms), tiled by windows of `window_s` from `from_ms` on; the last one may be cut short.

    Raises ValueError unless from is a whole second (the window's key in ClickHouse), before `to`, and the window is
    at least a second long.
    """

    from_ms: int
    to_ms: int
    window_s: int = 60

    def __post_init__(self) -> None:
        if self.window_s < 1:
            raise ValueError(f"a window of {self.window_s} s is too short: at least 1 s")
        if self.from_ms % 1000 or self.from_ms < 0:
            raise ValueError(f"the range must begin at a whole second of the epoch, not at {self.from_ms} ms")
        if self.to_ms <= self.from_ms:
            raise ValueError(f"nothing lies between {_text(self.from_ms)} and {_text(self.to_ms)}")
        if self.to_ms - self.from_ms > _LONGEST_DAYS * 86_400_000:
            raise ValueError(f"the range is longer than {_LONGEST_DAYS} days")

    @property
    def window_ms(self) -> int:
        """Length of a window."""
        return self.window_s * 1000

    def slices(self) -> list[dict[str, int]]:
        """The range in pieces of whole windows and about an hour, as query parameters: one Spark task each."""
        step_ms = max(_SLICE_MS // self.window_ms, 1) * self.window_ms
        return [
            {"slice_from_ms": start_ms, "slice_to_ms": min(start_ms + step_ms, self.to_ms)}
            for start_ms in range(self.from_ms, self.to_ms, step_ms)
        ]


def since(duration: str, now_ms: int, window_s: int) -> TimeRange:
    """The range that ends now and begins at the window (of the epoch's grid) in which `duration` ago lies.

    Raises ValueError when the duration cannot be read or the window is too short.
    """
    start_ms = now_ms - parse_duration(duration) * 1000
    grid_ms = max(window_s, 1) * 1000
    return TimeRange(from_ms=start_ms - start_ms % grid_ms, to_ms=now_ms, window_s=window_s)


def between(start: str, end: str, window_s: int) -> TimeRange:
    """The range from `start` to `end`. Raises ValueError when one of them cannot be read."""
    return TimeRange(from_ms=parse_time(start), to_ms=parse_time(end), window_s=window_s)


def parse_duration(text: str) -> int:
    """`90s`, `15m`, `2h`, `7d` in seconds. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"cannot read the duration {text!r}: write 90s, 15m, 2h or 7d")
    if not int(match[1]):
        raise ValueError(f"the duration {text!r} is none")
    return int(match[1]) * _SECONDS[match[2]]


def parse_time(text: str) -> int:
    """ISO 8601 (UTC unless it says otherwise) or seconds since the epoch, in ms. Raises ValueError otherwise."""
    try:
        return round(float(text) * 1000) if _is_number(text) else _iso_ms(text)
    except (ValueError, OverflowError):
        raise ValueError(f"cannot read the time {text!r}: write 2026-11-20T10:00:00Z or epoch seconds") from None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _iso_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _text(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat()
