"""Reads one segment: its position, how far the segment is written, how many records are unread."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from exporters.spool.segment_format import FORMAT, FRAME, SUFFIX, Named, frame_bytes, read_name, scan

_COUNTED_BYTES = 1 << 18  # read size when records are only counted


class Waiting(NamedTuple):
    """The unread part of a segment."""

    records: int
    nbytes: int
    uncounted_bytes: int  # whose records are not in `records`


class FollowedSegment:
    """Open until `close`. Records before `position` are finished. All methods raise OSError."""

    def __init__(self, path: Path, named: Named, position: int) -> None:
        self.named = named
        self.position = position
        self._fd = os.open(path, os.O_RDONLY)
        self._counted_to = position  # `_ahead` counts the records from position to here
        self._ahead = 0
        self._is_behind = True  # whether `count_ahead` has more to count than it was allowed to

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_being_written(self) -> bool:
        """Whether its writer has it open."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def read(self, nbytes: int, start: int) -> bytes:
        return os.pread(self._fd, nbytes, start)

    def readable_bytes(self) -> int:
        """Number of bytes after the position that are known to be records."""
        if not self.named.reused or not self.is_being_written():
            return self.size
        self.count_ahead(self.size)
        return self._counted_to - self.position

    def waiting(self) -> Waiting:
        """The unread part, as far as `count_ahead` has counted."""
        end = self._counted_to if self.named.reused else self.size
        uncounted = max(0, self.size - self._counted_to) if self._is_behind else 0
        return Waiting(self._ahead, max(0, end - self.position), 0 if self.named.reused else uncounted)

    def move_on(self, end: int, records: int) -> None:
        """Advances to `end`, past `records` records; a damaged range counts as one."""
        self.position = end
        if self._counted_to <= end:
            self._counted_to, self._ahead = end, 0
        else:
            self._ahead -= records

    def close(self) -> None:
        os.close(self._fd)

    def count_ahead(self, max_bytes: int) -> int:
        """Counts further records in at most about `max_bytes`. Returns the number of bytes read.

        Stops at damage.
        """
        size, mark = self.size, self.named.mark
        nbytes, done = _COUNTED_BYTES, 0
        self._is_behind = True
        while self._counted_to < size:
            if done >= max_bytes:
                return done
            room = size - self._counted_to
            data = self.read(nbytes, self._counted_to)
            done += len(data)
            counted, at = self._sound(data) if self.named.reused else _headed(data, mark, room)
            if at == 0:
                whole = frame_bytes(data[: FRAME.size], mark)
                if not nbytes < whole <= room:
                    break
                nbytes = whole
            self._ahead += counted
            self._counted_to += at
        self._is_behind = False
        return done

    def _sound(self, data: bytes) -> tuple[int, int]:
        """Like `_headed`, by checksums, because the size of a reused segment does not tell where its records end."""
        found = scan(data, self.named.mark, len(data))
        if found.corrupt:  # or it was written during the read: everything before a record that was seen is complete now
            found = scan(self.read(found.end, self._counted_to), self.named.mark, found.end)
        return len(found.records) + found.corrupt, found.end


def waiting_segments(directory: Path, positions: Mapping[str, int]) -> Iterator[tuple[str, str, int, int, int, bool]]:
    """Name, writer, records, bytes, position and whether it is being written, of each unfinished segment.

    Read-only; may run while a reader is active. Raises OSError.
    """
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        named = read_name(path.name)
        if named is None or named.format > FORMAT:
            continue
        try:
            segment = FollowedSegment(path, named, positions.get(path.name, 0))
        except FileNotFoundError:  # finished just now
            continue
        try:
            segment.count_ahead(segment.size)
            found = segment.waiting()
            if found.nbytes:
                yield path.name, named.writer, found.records, found.nbytes, segment.position, segment.is_being_written()
        finally:
            segment.close()


def _headed(data: bytes, mark: int, room: int) -> tuple[int, int]:
    """The number of records in `data` by their heads alone, and the end of the last one."""
    count = at = 0
    while 0 < (nbytes := frame_bytes(data[at : at + FRAME.size], mark)) <= room - at:
        at += nbytes
        count += 1
    return count, at
