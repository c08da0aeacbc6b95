"""The clock of everything that is recorded; what decides by time takes it as a parameter."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Wall time, ms since the epoch."""
    return time.time_ns() // 1_000_000
