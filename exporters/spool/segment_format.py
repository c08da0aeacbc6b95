"""The format of spool segments: file names, framing of records, recovery after damage. Sans-I/O.

    segment name   <created, ns since 1970, 20 digits>-<writer>-<mark, 8 hex digits>-v<format>[r].spool
    record         mark u32 | length of the body u32 | CRC-32C of kind and body u32 | kind u8 | body

All big endian. The mark is random per segment, so that a client cannot craft a body that looks like a record: after
damage the reader searches for the next mark followed by a record with a valid checksum. A segment with an `r` in its
name overwrites a finished one: until its writer closes it, old bytes follow its end.

Format 1 is this framing and the record layouts of records.py. A segment of a newer format is left alone.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from exporters.model import RecordKind

FRAME: Final = struct.Struct(">IIIB")
SUFFIX: Final = ".spool"
FREE_SUFFIX: Final = ".free"  # finished, to be overwritten
FORMAT: Final = 1
_CHECKED: Final = 12  # where the checksummed bytes of a frame begin
_NAME: Final = re.compile(r"\d{20}-([A-Za-z0-9_.]+)-([0-9a-f]{8})-v(\d{1,4})(r?)\.spool")
_WRITER: Final = re.compile(r"[A-Za-z0-9_.]+")
_KINDS: Final[dict[int, RecordKind]] = {kind.value: kind for kind in RecordKind}
# Where a checksum begins.
CRC_OF_KIND: Final[dict[int, int]] = {kind.value: crc32c(bytes([kind])) for kind in RecordKind}

Record = tuple[RecordKind, bytes]


class Named(NamedTuple):
    """The parts of a segment's name. `reused`: it overwrites a finished segment."""

    writer: str
    mark: int
    reused: bool
    format: int = FORMAT


def segment_name(created_ns: int, writer: str, mark: int, reused: bool = False) -> str:
    """A name that sorts by age. Raises ValueError unless `writer` consists of letters, digits, '_' and '.'."""
    if not _WRITER.fullmatch(writer):
        raise ValueError(f"cannot name a segment after the writer {writer!r}: letters, digits, '_' and '.' only")
    return f"{created_ns:020d}-{writer}-{mark:08x}-v{FORMAT}{'r' if reused else ''}{SUFFIX}"


def read_name(segment: str) -> Named | None:
    """None for names that are not segments."""
    match = _NAME.fullmatch(segment)
    return Named(match[1], int(match[2], 16), match[4] != "", int(match[3])) if match else None


class Scan(NamedTuple):
    """The records found in a part of a segment."""

    records: list[Record]
    ends: list[tuple[int, int]]  # per record: the offset after it, and the number of damaged ranges skipped before it

    @property
    def end(self) -> int:
        """The offset after the last complete record."""
        return self.ends[-1][0] if self.ends else 0

    @property
    def corrupt(self) -> int:
        """Damaged ranges skipped before `end`."""
        return self.ends[-1][1] if self.ends else 0


def scan(data: bytes, mark: int, max_records: int) -> Scan:
    """The complete records in `data`, which begins at a record.

    A damaged range is skipped if a valid record follows it; otherwise the scan ends before it, as before a partly
    written record.
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
    """The length of the record according to `head`; 0 when that is not a record head."""
    if len(head) < FRAME.size:
        return 0
    found, length, _, _ = FRAME.unpack_from(head)
    return FRAME.size + int(length) if found == mark else 0


def _record_end(view: memoryview, start: int, mark: int) -> int:
    """The end of the record at `start`; -1 when it is incomplete or damaged."""
    if start + FRAME.size > len(view):
        return -1
    found, length, checksum, kind = FRAME.unpack_from(view, start)
    end: int = start + FRAME.size + length
    if found != mark or end > len(view) or kind not in _KINDS:
        return -1
    return end if crc32c(view[start + _CHECKED : end]) == checksum else -1


def _next_record(data: bytes, view: memoryview, start: int, mark: int) -> int:
    """The beginning of the next valid record at or after `start`; -1 without one."""
    wanted = mark.to_bytes(4)
    found = data.find(wanted, start)
    while found >= 0 and _record_end(view, found, mark) < 0:
        found = data.find(wanted, found + 1)
    return found
