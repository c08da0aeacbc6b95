"""A moment for rows of tests: fixed within a week, and never so old that the TTL of a table removes the rows."""

from __future__ import annotations

import time

_WEEK_MS = 7 * 86_400_000
_A_FRIDAY_MS = 1_795_168_800_000  # 2026-11-20, 10:00 UTC
# 10:00 UTC on the last Friday that was over two hours ago: the weekday is fixed, because forecasts depend on it.
FRIDAY_MS = _A_FRIDAY_MS + (int(time.time() * 1000) - 2 * 3_600_000 - _A_FRIDAY_MS) // _WEEK_MS * _WEEK_MS
