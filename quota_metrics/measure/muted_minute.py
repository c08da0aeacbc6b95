"""Muted time of the last minute, from the rows of usage of each second. Sans-I/O."""

from __future__ import annotations

from array import array

SECONDS = 60
_MAX_MS = 65_535


class MutedMinute:
    """Sum of `muted_ms` over the last 60 seconds, in 120 bytes. A clock that goes back adds to seconds of the past."""

    __slots__ = ("_ms", "_second")

    def __init__(self) -> None:
        self._ms = array("H", bytes(2 * SECONDS))
        self._second = 0

    def add(self, ts_ms: int, muted_ms: int) -> None:
        """A row: `muted_ms` of the interval that ends at `ts_ms`."""
        second = ts_ms // 1000
        self._advance(second)
        self._ms[second % SECONDS] = min(self._ms[second % SECONDS] + muted_ms, _MAX_MS)

    def muted_ms(self, now_ms: int) -> int:
        """The muted time of (now_ms - 60 s, now_ms], by whole seconds."""
        self._advance(now_ms // 1000)
        return sum(self._ms)

    def _advance(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - SECONDS + 1), second + 1):
            self._ms[passed % SECONDS] = 0
        self._second = max(self._second, second)
