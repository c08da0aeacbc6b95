"""What the worker is doing and since when, for its supervisor; and the range at which a worker died.

A range of the spool at which the worker died or was killed is read in ever smaller batches. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from exporters.spool.reader import Batch


class Stage(StrEnum):
    """The current activity of the ingest thread."""

    IDLE = "idle"
    DECODING = "decoding"
    WRITING = "writing"  # waiting for the store, whose client has its own timeouts


class Progress:
    """`clock_s` is monotonic. Written by the ingest thread, read by any."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.stage = Stage.IDLE
        self.clock_s = clock_s
        self._advanced_s = clock_s()

    def advance(self, stage: Stage) -> None:
        """Reports progress: a record was decoded, a table was built or written, or there is nothing to do."""
        self.stage = stage
        self._advanced_s = self.clock_s()

    @property
    def idle_s(self) -> float:
        """Seconds since the last advance."""
        return self.clock_s() - self._advanced_s


_SHRINK_BY = 16


class Suspect(NamedTuple):
    """`max_records` of a batch inside the range; 0: its first record is quarantined without decoding."""

    segment: str
    start: int
    end: int
    max_records: int
    deaths: int

    @property
    def has_narrowed(self) -> bool:
        """Whether a begun batch may be split, although rows may then be stored twice.

        Not after one death: nearly always the same batch with the same token succeeds.
        """
        return self.deaths > 1

    def covers(self, segment: str, start: int) -> bool:
        """Whether a batch begins inside the range."""
        return segment == self.segment and self.start <= start < self.end

    def cut(self, batch: Batch) -> Batch:
        """The part of a batch that may be tried at once."""
        return batch.first(max(1, self.max_records)) if self.covers(batch.segment, batch.start) else batch

    def is_culprit(self, batch: Batch) -> bool:
        """Whether the first record of the batch was tried alone and the worker died of it."""
        return self.max_records == 0 and self.covers(batch.segment, batch.start)


def suspect_after(earlier: Suspect | None, segment: str, start: int, end: int, max_records: int) -> Suspect:
    """The suspect after a death in a range. `max_records`: of a batch without a suspect."""
    if earlier is None or not earlier.covers(segment, start):
        return Suspect(segment, start, end, max(1, max_records // _SHRINK_BY), 1)
    smaller = max(1, earlier.max_records // _SHRINK_BY) if earlier.max_records > 1 else 0
    return Suspect(segment, start, end, smaller, earlier.deaths + 1)
