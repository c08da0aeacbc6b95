"""What the worker is doing, and since when; the supervisor reads it from another thread. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Stage(StrEnum):
    """The current activity of the ingest thread."""

    IDLE = "idle"
    DECODING = "decoding"
    WRITING = "writing"  # waiting for the store, whose client has its own timeouts


class Progress:
    """`clock_s` is monotonic. Written by the ingest thread, read by any."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.stage = Stage.IDLE
        self._clock_s = clock_s
        self._advanced_s = clock_s()

    def advance(self, stage: Stage) -> None:
        """Reports progress: a record was decoded, a table was built or written, or there is nothing to do."""
        self.stage = stage
        self._advanced_s = self._clock_s()

    @property
    def idle_s(self) -> float:
        """Seconds since the last advance."""
        return self._clock_s() - self._advanced_s
