"""What the worker is doing and since when, for its supervisor; and the range at which a worker died.

A range of the spool at which the worker died or was killed is read in ever smaller batches. Counts of spool records by
outcome are saved with the position in the spool. Sans-I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from exporters.model import DropReason, RecordKind


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
        return self.clock_s() - self._advanced_s


_SHRINK_BY = 16


class Suspect(NamedTuple):
    """`max_records` of a batch inside the range; 0: its first record is quarantined without decoding."""

    segment: str
    start: int
    end: int
    max_records: int
    deaths: int

    def covers(self, segment: str, start: int) -> bool:
        """Whether a batch begins inside the range."""
        return segment == self.segment and self.start <= start < self.end


def suspect_after(earlier: Suspect | None, segment: str, start: int, end: int, max_records: int) -> Suspect:
    """The suspect after a death in a range. `max_records`: of a batch without a suspect."""
    if earlier is None or not earlier.covers(segment, start):
        return Suspect(segment, start, end, max(1, max_records // _SHRINK_BY), 1)
    smaller = max(1, earlier.max_records // _SHRINK_BY) if earlier.max_records > 1 else 0
    return Suspect(segment, start, end, smaller, earlier.deaths + 1)


REPLAY_WRITER = "replay"  # the writer name of segments made by `headroom quarantine replay`


@dataclass(slots=True)
class Counts:
    """Records and points committed since the spool was created."""

    written: Counter[RecordKind] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    points_written: int = 0
    points_dropped: Counter[DropReason] = field(default_factory=Counter)  # of stored pushes
    clamped_timestamps: int = 0
    series_written: int = 0
    replayed: int = 0  # records written to the spool by `headroom quarantine replay`
    replaced_texts: int = 0  # pushes with texts that were not UTF-8

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, counter.name) + getattr(other, counter.name) for counter in fields(self)))

    def as_note(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "written": {kind.name: self.written[kind] for kind in RecordKind},
            "dropped": {reason.value: self.dropped[reason] for reason in DropReason},
            "points_dropped": {reason.value: self.points_dropped[reason] for reason in DropReason},
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Counts:
        """The counts in a note made by `as_note`, possibly of another version; missing counts are 0."""
        written, dropped, points_dropped = (note.get(key, {}) for key in ("written", "dropped", "points_dropped"))
        return cls(
            written=Counter({kind: written.get(kind.name, 0) for kind in RecordKind}),
            dropped=Counter({reason: dropped.get(reason.value, 0) for reason in DropReason}),
            points_dropped=Counter({reason: points_dropped.get(reason.value, 0) for reason in DropReason}),
            **{name: note.get(name, 0) for name in _NUMBERS},
        )


_NUMBERS = [counter.name for counter in fields(Counts) if counter.type == "int"]
