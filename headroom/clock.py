"""The two clocks: wall time for what is recorded, monotonic time for what is decided. Both are handed in."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Wall time, ms since the epoch."""
    return time.time_ns() // 1_000_000


_WALL_AT_START_NS = time.time_ns() - time.monotonic_ns()


def monotonic_ms() -> int:
    """Wall time at the start of this process, in ms, and what has passed since: no step of the wall clock moves it."""
    return (_WALL_AT_START_NS + time.monotonic_ns()) // 1_000_000
