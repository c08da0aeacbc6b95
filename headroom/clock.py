"""The two clocks, which are passed as parameters: wall time for records, monotonic time for decisions."""

import time
from typing import Final

_TIME_NS: Final = time.time_ns  # looked up once


def now_ms() -> int:
    """Wall time, ms since the epoch."""
    return _TIME_NS() // 1_000_000


_WALL_AT_START_NS: Final = time.time_ns() - time.monotonic_ns()


def monotonic_ms() -> int:
    """Wall time in ms at the start of the process plus the monotonic time since; not affected by clock changes."""
    return (_WALL_AT_START_NS + time.monotonic_ns()) // 1_000_000
