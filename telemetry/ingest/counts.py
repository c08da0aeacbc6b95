"""Counts of spool records by outcome, saved with the position in the spool. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from exporters.model import DropReason, RecordKind

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

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def as_note(self) -> dict[str, Any]:
        """As a dictionary of JSON types."""
        return {
            "written": {kind.name: self.written[kind] for kind in RecordKind},
            "dropped": {reason.value: self.dropped[reason] for reason in DropReason},
            "points_written": self.points_written,
            "points_dropped": {reason.value: self.points_dropped[reason] for reason in DropReason},
            "clamped_timestamps": self.clamped_timestamps,
            "series_written": self.series_written,
            "replayed": self.replayed,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Counts:
        """The counts in a note made by `as_note`, possibly of another version; missing counts are 0."""
        written, dropped, points_dropped = (note.get(key, {}) for key in ("written", "dropped", "points_dropped"))
        return cls(
            Counter({kind: written.get(kind.name, 0) for kind in RecordKind}),
            Counter({reason: dropped.get(reason.value, 0) for reason in DropReason}),
            note.get("points_written", 0),
            Counter({reason: points_dropped.get(reason.value, 0) for reason in DropReason}),
            note.get("clamped_timestamps", 0),
            note.get("series_written", 0),
            note.get("replayed", 0),
        )
