"""The spool's files as bytes: names of segments, frames of records, and how frames are read back. Sans-I/O.

    segment name   <created, ns since 1970, 20 digits>-<writer>-<mark, 8 hex digits>-v<format>[r].spool
    record         mark u32 | length of the body u32 | CRC-32C of kind and body u32 | kind u8 | body

All big endian. The mark is drawn at random for each segment, so that nobody who fills a body can make bytes in it look
like a record: after damage the reader looks for the next mark whose record has a right checksum. A segment with an `r`
in its name overwrites a finished one: until its writer closes it, old bytes stand behind its end.

Format 1 is this framing and the record layouts of records.py. A segment of a newer format is left alone.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from crc32c import crc32c

from exporters.model import RecordKind

FRAME = struct.Struct(">IIIB")
SUFFIX = ".spool"
FREE_SUFFIX = ".free"  # finished, to be overwritten
FORMAT = 1
_CHECKED = 12  # where the checksummed bytes of a frame begin
_NAME = re.compile(r"\d{20}-([A-Za-z0-9_.]+)-([0-9a-f]{8})-v(\d{1,4})(r?)\.spool")
_WRITER = re.compile(r"[A-Za-z0-9_.]+")
_KINDS: dict[int, RecordKind] = {kind.value: kind for kind in RecordKind}
CRC_OF_KIND: dict[int, int] = {kind.value: crc32c(bytes([kind])) for kind in RecordKind}  # where a checksum begins

Record = tuple[RecordKind, bytes]


class Named(NamedTuple):
    """The parts of a segment's name. `reused`: it overwrites a finished segment."""

    writer: str
    mark: int
    reused: bool
    format: int = FORMAT


def segment_name(created_ns: int, writer: str, mark: int, reused: bool = False) -> str:
    """A name that sorts by age. Raises ValueError unless `writer` is made of letters, digits, '_' and '.'."""
    if not _WRITER.fullmatch(writer):
        raise ValueError(f"cannot name a segment after the writer {writer!r}: letters, digits, '_' and '.' only")
    return f"{created_ns:020d}-{writer}-{mark:08x}-v{FORMAT}{'r' if reused else ''}{SUFFIX}"


def read_name(segment: str) -> Named | None:
    """None when this is not the name of a segment."""
    match = _NAME.fullmatch(segment)
    return Named(match[1], int(match[2], 16), match[4] != "", int(match[3])) if match else None


class Scan(NamedTuple):
    """What stands in a stretch of a segment."""

    records: list[Record]
    ends: list[tuple[int, int]]  # of each record: the byte behind it, stretches of damage skipped before it

    @property
    def end(self) -> int:
        """The byte behind the last whole record."""
        return self.ends[-1][0] if self.ends else 0

    @property
    def corrupt(self) -> int:
        """Stretches of damage that were skipped before `end`."""
        return self.ends[-1][1] if self.ends else 0


def scan(data: bytes, mark: int, max_records: int) -> Scan:
    """The whole records in `data`, which begins where a record begins.

    Damage is skipped when a good record follows it; else reading ends before it, as before a half-written record.
    """
    records: list[Record] = []
    view = memoryview(data)
    ends: list[tuple[int, int]] = []
    start = corrupt = 0
    while len(records) < max_records:
        behind = _record_end(view, start, mark)
        if behind > 0:
            records.append((_KINDS[data[start + _CHECKED]], data[start + FRAME.size : behind]))
            start = behind
            ends.append((behind, corrupt))
            continue
        start = _next_record(data, view, start + 1, mark)
        if start < 0:
            break
        corrupt += 1
    return Scan(records, ends)


def frame_bytes(head: bytes, mark: int) -> int:
    """How long the record is that begins with `head`, by its head alone; 0 when that is no head."""
    if len(head) < FRAME.size:
        return 0
    found, length, _, _ = FRAME.unpack_from(head)
    return FRAME.size + int(length) if found == mark else 0


def _record_end(view: memoryview, start: int, mark: int) -> int:
    """Where the record at `start` ends; -1 when there is no whole and sound record."""
    if start + FRAME.size > len(view):
        return -1
    found, length, checksum, kind = FRAME.unpack_from(view, start)
    end: int = start + FRAME.size + length
    if found != mark or end > len(view) or kind not in _KINDS:
        return -1
    return end if crc32c(view[start + _CHECKED : end]) == checksum else -1


def _next_record(data: bytes, view: memoryview, start: int, mark: int) -> int:
    """Where the next sound record at or behind `start` begins; -1 when there is none."""
    wanted = mark.to_bytes(4)
    found = data.find(wanted, start)
    while found >= 0 and _record_end(view, found, mark) < 0:
        found = data.find(wanted, found + 1)
    return found
