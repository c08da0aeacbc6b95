"""Log lines about requests, which anyone can send: few, with the number of those left out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

from exporters.printable import printable, shortened

_EVERY_S = 60.0


class SparseLog:
    """Logs at most one warning per minute, values of at most `longest` characters. `clock` gives monotonic seconds."""

    def __init__(self, name: str, longest: int = 60, clock: Callable[[], float] = time.monotonic) -> None:
        self._log: Any = structlog.get_logger(name)
        self._longest = longest
        self._clock = clock
        self._logged_at_s = -math.inf
        self._not_logged = 0  # since then

    def warning(self, event: str, **values: str) -> None:
        """Values may come from a client: they are escaped and shortened."""
        now_s = self._clock()
        if now_s - self._logged_at_s < _EVERY_S:
            self._not_logged += 1
            return
        shown = {name: shortened(printable(value), self._longest) for name, value in values.items()}
        self._log.warning(event, **shown, more_since_last_line=self._not_logged)
        self._logged_at_s, self._not_logged = now_s, 0
