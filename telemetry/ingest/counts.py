"""What became of the records of the spool, as counts that outlive the process that counts. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from exporters.model import DropReason, RecordKind


@dataclass(slots=True)
class Counts:
    """What became of the records that were committed, since the spool began. received = written + dropped, in records
    and in points."""

    written: Counter[RecordKind] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    points_written: int = 0
    points_dropped: Counter[DropReason] = field(default_factory=Counter)  # out of pushes that were kept
    clamped_timestamps: int = 0
    series_written: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def as_note(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "written": {kind.name: self.written[kind] for kind in RecordKind},
            "dropped": {reason.value: self.dropped[reason] for reason in DropReason},
            "points_written": self.points_written,
            "points_dropped": {reason.value: self.points_dropped[reason] for reason in DropReason},
            "clamped_timestamps": self.clamped_timestamps,
            "series_written": self.series_written,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Counts:
        """What `as_note` gave, perhaps that of another version; of nothing, nothing."""
        written, dropped, points_dropped = (note.get(key, {}) for key in ("written", "dropped", "points_dropped"))
        return cls(
            Counter({kind: written.get(kind.name, 0) for kind in RecordKind}),
            Counter({reason: dropped.get(reason.value, 0) for reason in DropReason}),
            note.get("points_written", 0),
            Counter({reason: points_dropped.get(reason.value, 0) for reason in DropReason}),
            note.get("clamped_timestamps", 0),
            note.get("series_written", 0),
        )
