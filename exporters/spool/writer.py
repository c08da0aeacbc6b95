"""The durable hand-over between the network processes, which write, and the storage worker, which reads.

Here is the writing side; spool_reader.py reads. Acknowledged means written here. A writer appends records to segments
that are its alone, and tells by a lock (flock) on the open segment that it lives.

A crash of a process loses nothing that was flushed; a power loss at most what was not yet synced.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from exporters.model import RecordKind
from exporters.spool.segment_format import CRC_OF_KIND, FRAME, FREE_SUFFIX, SUFFIX, segment_name

_MEASURE_EVERY_S = 1.0  # how old what we know of the other files in the directory may grow
_MEASURE_AGAIN_S = 0.05  # the same while the spool looks full


class SpoolFull(Exception):  # noqa: N818 - a condition, as queue.Full
    """The spool may not grow: nothing was queued; the client shall come back."""


class SpoolWriter:
    """Appends records to segments of its own in `directory`.

    `append` and `flush` belong to one thread, `sync` to another: it must be called now and then, as it also closes
    the segments that are full. `max_bytes` bounds the whole directory, what other writers left in it included.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        segment_bytes: int,
        max_bytes: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._name = name
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._mark = secrets.randbits(32)
        self._created_ns = 0
        self._path = directory / segment_name(0, name, self._mark)
        self._reused = False  # the segment being written was another before
        self._fd = -1
        self._end = 0  # bytes in the segment being written
        self._queue: list[bytes] = []  # heads and bodies in turn
        self._queued_bytes = 0
        self._retired: deque[int] = deque()  # full segments: still to be synced and closed
        self._directory_dirty = False
        self._closing = threading.Lock()  # a descriptor is closed, or duplicated for sync, under it
        self.records = 0  # written since the start
        self.bytes = 0
        directory.mkdir(parents=True, exist_ok=True)
        for unnamed in directory.glob(f"*-{name}.tmp"):  # we died before it was a segment
            unnamed.unlink(missing_ok=True)
        self._measure()

    def append(self, kind: RecordKind, body: bytes) -> None:
        """Queue one record. Raises SpoolFull."""
        length = len(body)
        nbytes = FRAME.size + length
        if self._others_bytes + self._end + self._queued_bytes + nbytes > self._max_bytes:
            self._refuse_if_full(nbytes)
        self._queue += (FRAME.pack(self._mark, length, crc32c(body, CRC_OF_KIND[kind]), kind), body)
        self._queued_bytes += nbytes

    def reserve(self, body_bytes: int, records: int) -> None:
        """Make sure that so many records can be queued one after the other. Raises SpoolFull."""
        nbytes = body_bytes + records * FRAME.size
        if self._others_bytes + self._end + self._queued_bytes + nbytes > self._max_bytes:
            self._refuse_if_full(nbytes)

    def flush(self) -> None:
        """Write all that is queued. Raises OSError: then nothing of it is written, and the queue is empty."""
        if not self._queue:
            return
        # One copy and one write cost less than writev over three parts a record (measured: 0.07 and 0.15 us a record).
        data, records = b"".join(self._queue), len(self._queue) // 2
        self._queue.clear()
        self._queued_bytes = 0
        try:
            if self._clock_s() - self._measured_at > _MEASURE_EVERY_S:
                self._measure()
            self._write(data)
        except OSError:
            self._abandon_segment()
            raise
        self._end += len(data)
        self.records += records
        self.bytes += len(data)
        if self._end >= self._segment_bytes:
            self._retire()

    def sync(self) -> None:
        """Make all that was flushed survive a power loss (fdatasync), close full segments. May run in a thread.

        Raises OSError: what was flushed since the last sync may then be lost with the power.
        """
        while self._retired:
            full = self._retired.popleft()
            try:
                os.fdatasync(full)
            finally:
                with self._closing:
                    os.close(full)
        current = self._duplicate()
        if current >= 0:
            try:
                os.fdatasync(current)
            finally:
                os.close(current)
        if self._directory_dirty:
            self._directory_dirty = False
            try:
                sync_directory(self._directory)
            except OSError:
                self._directory_dirty = True  # the next sync has to do it
                raise

    def close(self) -> None:
        """Flush, sync, and let go of the segment. Raises OSError."""
        try:
            self.flush()
        finally:
            self._retire()
            self.sync()

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            self._open_segment()
        rest = memoryview(data)
        while rest:
            written = os.write(self._fd, rest)  # not within the slice: mypyc would write twice
            rest = rest[written:]

    def _open_segment(self) -> None:
        """Begin a segment. It gets its name only when it is locked: the reader takes an unlocked one for abandoned."""
        self._created_ns = max(time.time_ns(), self._created_ns + 1)
        self._path = self._directory / f"{self._created_ns:020d}-{self._name}.tmp"
        self._reused = self._take_free()
        try:
            self._fd = os.open(self._path, os.O_WRONLY | (0 if self._reused else os.O_CREAT | os.O_EXCL), 0o640)
        except OSError:
            with suppress(OSError):
                self._path.unlink()  # what was taken to be written over
            raise
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = segment_name(self._created_ns, self._name, self._mark, self._reused)
        self._path = self._path.rename(self._directory / name)
        self._directory_dirty = True

    def _take_free(self) -> bool:
        """Take a segment that is done with: its blocks are there, and its pages are in memory.

        A page that the kernel has to find first costs as much as the rest of a push where a hypervisor lends memory.
        Until its writer leaves it, the others count all its old bytes as if the spool held them: we take none that is
        large, nor when little room is left. Even when all that are free are taken at once, more than half stays.
        """
        self._measure()
        room = self._max_bytes // 4 - self._others_bytes
        for free in self._directory.glob(f"*{FREE_SUFFIX}"):
            with suppress(FileNotFoundError):  # another writer was quicker
                if free.stat().st_size <= min(room, self._max_bytes // 16):
                    free.rename(self._path)
                    return True
        return False

    def _retire(self) -> None:
        if self._fd >= 0:
            if self._reused:
                with suppress(OSError):  # the reader tells what was written from what stands behind it
                    os.ftruncate(self._fd, self._end)
            self._others_bytes += self._end
            self._retired.append(self._fd)
            self._fd, self._end = -1, 0
            self._mark = secrets.randbits(32)

    def _abandon_segment(self) -> None:
        """Cut a torn tail off and go on in a new segment: the reader may already stand behind the cut."""
        if self._fd < 0:
            return
        with suppress(OSError):  # the reader finds a torn tail as well as we do
            os.ftruncate(self._fd, self._end)
        if self._end > 0:
            self._retire()
            return
        with suppress(OSError):
            self._path.unlink()
        with self._closing:
            os.close(self._fd)
            self._fd = -1

    def _duplicate(self) -> int:
        with self._closing:
            current = self._fd  # taken once: it may be retired meanwhile
            return os.dup(current) if current >= 0 else -1

    def _refuse_if_full(self, nbytes: int) -> None:
        if self._clock_s() - self._measured_at > _MEASURE_AGAIN_S:
            self._measure()
        total = self._others_bytes + self._end + self._queued_bytes + nbytes
        if total > self._max_bytes:
            raise SpoolFull(f"cannot queue {nbytes} bytes: the spool would hold {total} of {self._max_bytes}")

    def _measure(self) -> None:
        """Look up how much the other files in the directory hold."""
        self._measured_at = self._clock_s()
        own = self._path.name if self._fd >= 0 else ""
        self._others_bytes = sum(size for name, size in segment_sizes(self._directory).items() if name != own)


def segment_sizes(directory: Path) -> dict[str, int]:
    """The segments in a spool's directory, oldest first, and how many bytes each holds."""
    sizes = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):  # the reader was done with it
                    sizes[entry.name] = entry.stat().st_size
    return dict(sorted(sizes.items()))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power loss."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
