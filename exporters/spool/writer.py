"""Writes the spool, which reader.py reads. A push is acknowledged after it is written here.

Each writer appends to its own segments and holds a lock (flock) on the open segment while it lives. A crash of the
process loses no flushed record; a power loss loses at most the records that were not synced. Those who send most have
segments of their own (`PushSpool`).
"""

import fcntl
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EIO, ENOENT
from pathlib import Path
from typing import Final

from crc32c import crc32c

from exporters.model import RecordKind
from exporters.spool.lanes import ORDINARY, Lane, Lanes, Sender
from exporters.spool.positions import segment_sizes, sync_path
from exporters.spool.records import (
    CRC_OF_KIND,
    FRAME,
    FREE_SUFFIX,
    USAGE_WRITER,
    heavy_writer,
    holds_usage,
    of_share,
    payers_writer,
    segment_name,
)

_FRAME_BYTES: Final = FRAME.size
_MEASURE_EVERY_S: Final = 1.0  # maximum age of the measured size of the other files
_MEASURE_AGAIN_S: Final = 0.05  # the same while the spool seems full


class SpoolFull(Exception):  # noqa: N818 - a condition, as queue.Full
    """The spool has reached its limit; nothing was queued. Clients are asked to retry."""


class SpoolWriter:
    """Appends records to its own segments in `directory`.

    `append` and `flush` are for one thread. `sync` may run in another and must be called periodically, because it also
    closes full segments. `max_bytes` bounds all segments of pushes in the directory, or all of usage, including those
    of other writers: neither side can push the other out.
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
        self._reused = False  # the segment being written overwrites a finished one
        self._deleted = False  # the segment being written was not found when the directory was read
        self._fd = -1
        self._end = 0  # bytes in the segment being written
        self._queue: list[bytes] = []  # heads and bodies, alternating
        self._queued_bytes = 0
        self._retired: deque[int] = deque()  # full segments that `sync` has to sync and close
        self._directory_dirty = False
        self._closing = threading.Lock()  # held while a descriptor is closed, or duplicated for sync
        self.records = 0  # written since the start
        self.bytes = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unnamed in directory.glob(f"*-{name}.tmp"):  # left by a crash before it was renamed to a segment
            unnamed.unlink(missing_ok=True)
        self._measure()

    def append(self, kind: RecordKind, body: bytes) -> None:
        """Queues one record. Raises SpoolFull."""
        length = len(body)
        queued_bytes = self._queued_bytes + _FRAME_BYTES + length
        if self._others_bytes + self._end + queued_bytes > self._max_bytes:
            self._refuse_if_full(_FRAME_BYTES + length)
        self._queue.append(FRAME.pack(self._mark, length, crc32c(body, CRC_OF_KIND[kind]), kind))
        self._queue.append(body)
        self._queued_bytes = queued_bytes

    def reserve(self, body_bytes: int, records: int) -> None:
        """Raises SpoolFull unless all these records can be queued one after the other."""
        nbytes = body_bytes + records * _FRAME_BYTES
        if self._others_bytes + self._end + self._queued_bytes + nbytes > self._max_bytes:
            self._refuse_if_full(nbytes)

    def flush(self) -> None:
        """Writes all queued records. After an OSError none of them is written, and the queue is empty."""
        if not self._queue:
            return
        # One copy and one write are cheaper than writev over three buffers per record (0.07 and 0.15 us per record).
        data, records = b"".join(self._queue), len(self._queue) // 2
        self._queue.clear()
        self._queued_bytes = 0
        try:
            if self._clock_s() - self._measured_at > _MEASURE_EVERY_S:
                self._measure()
            if self._deleted:  # nobody would read what is written
                raise FileNotFoundError(ENOENT, "the segment was deleted by another program", str(self._path))
            if self._fd < 0:
                self._open_segment()
            rest = memoryview(data)
            while rest:
                written = os.write(self._fd, rest)  # not within the slice: mypyc would write twice
                rest = rest[written:]
        except OSError:
            self._abandon_segment()
            raise
        self._end += len(data)
        self.records += records
        self.bytes += len(data)
        if self._end >= self._segment_bytes:
            self._retire()

    def sync(self) -> None:
        """Makes flushed records survive a power loss (fdatasync) and closes full segments. May run in a thread.

        After an OSError, a power loss may lose the records flushed since the last sync.
        """
        while self._retired:
            full = self._retired.popleft()
            try:
                os.fdatasync(full)
            finally:
                with self._closing:
                    os.close(full)
        with self._closing:
            current = self._fd  # read once, because another thread may retire it
            current = os.dup(current) if current >= 0 else -1
        if current >= 0:
            try:
                os.fdatasync(current)
            finally:
                os.close(current)
        if self._directory_dirty:
            self._directory_dirty = False
            try:
                sync_path(self._directory)
            except OSError:
                self._directory_dirty = True  # the next sync retries
                raise

    def is_over_share(self, free_times: int) -> bool:
        """Whether the segments of this writer and of the one beside it hold more than `free_times` what is free;
        measured again before it says so."""
        if self._is_over_share(free_times) and self._clock_s() - self._measured_at > _MEASURE_AGAIN_S:
            self._measure()
        return self._is_over_share(free_times)

    def _is_over_share(self, free_times: int) -> bool:
        unread = self._end + self._queued_bytes
        return self._own_bytes + unread > free_times * max(0, self._max_bytes - self._others_bytes - unread)

    def rest(self) -> None:
        """Closes the segment being written, so that the reader can free it; the next record opens another."""
        if not self._queue:
            self._retire()

    def close(self) -> None:
        """Flushes, syncs and closes the segment. Raises OSError."""
        try:
            self.flush()
        finally:
            self._retire()
            self.sync()

    def _open_segment(self) -> None:
        """Begins a segment. It is renamed after it is locked, because an unlocked segment counts as abandoned."""
        self._created_ns = max(time.time_ns(), self._created_ns + 1)
        self._path = self._directory / f"{self._created_ns:020d}-{self._name}.tmp"
        self._reused = self._take_free()
        try:
            self._fd = os.open(self._path, os.O_WRONLY | (0 if self._reused else os.O_CREAT | os.O_EXCL), 0o600)
        except OSError:
            with suppress(OSError):
                self._path.unlink()  # the reused segment
            raise
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = segment_name(self._created_ns, self._name, self._mark, self._reused)
        self._path = self._path.rename(self._directory / name)
        self._directory_dirty = True

    def _take_free(self) -> bool:
        """Takes a finished segment to overwrite, whose blocks are allocated and whose pages are in memory.

        On a virtual machine with ballooned memory, the first touch of a page costs as much as the rest of a push. Until
        the writer closes the segment, its old bytes count as spooled; therefore large segments are not reused, nor any
        when the spool is nearly full. Even if all free segments are taken, more than half of the room remains.
        """
        self._measure()
        room = self._max_bytes // 4 - self._others_bytes
        for free in self._directory.glob(f"*{FREE_SUFFIX}"):
            with suppress(FileNotFoundError):  # another writer took it
                if free.stat().st_size <= min(room, self._max_bytes // 16):
                    free.rename(self._path)
                    return True
        return False

    def _retire(self) -> None:
        if self._fd >= 0:
            if self._reused:
                with suppress(OSError):  # the reader distinguishes records from old bytes
                    os.ftruncate(self._fd, self._end)
            self._others_bytes += self._end
            self._own_bytes += self._end
            self._retired.append(self._fd)
            self._fd, self._end, self._deleted = -1, 0, False
            self._mark = secrets.randbits(32)

    def _abandon_segment(self) -> None:
        """Truncates a torn tail and continues in a new segment, because the reader may already be past the cut."""
        if self._fd < 0:
            return
        with suppress(OSError):  # the reader detects a torn tail, too
            os.ftruncate(self._fd, self._end)
        if self._end > 0:
            self._retire()
            return
        with suppress(OSError):
            self._path.unlink()
        with self._closing:
            os.close(self._fd)
            self._fd, self._deleted = -1, False

    def _refuse_if_full(self, nbytes: int) -> None:
        if self._clock_s() - self._measured_at > _MEASURE_AGAIN_S:
            self._measure()
        total = self._others_bytes + self._end + self._queued_bytes + nbytes
        if total > self._max_bytes:
            raise SpoolFull(f"cannot queue {nbytes} bytes: the spool would hold {total} of {self._max_bytes}")

    def _measure(self) -> None:
        self._measured_at = self._clock_s()
        own = self._path.name if self._fd >= 0 else ""
        sizes = segment_sizes(self._directory)
        self._deleted = own != "" and own not in sizes
        is_usage, mine = self._name == USAGE_WRITER, payers_writer(self._name)
        self._others_bytes = self._own_bytes = 0
        for name, size in sizes.items():
            if name != own and holds_usage(name) is is_usage:
                self._others_bytes += size
                self._own_bytes += size if of_share(name, mine) else 0


_PERIOD_S: Final = 1.0
_FREE_TIMES: Final = 4  # what a heavy writer may hold of what is free: alone 4/5 of the spool, and newcomers find room


class PushSpool:
    """Writes as SpoolWriter does, in the lanes of payers (lanes.py).

    `open_writer` opens a writer by its name: `NAME` for payers of ordinary size, `NAME.heavyN` for the busy connections
    of the largest, `NAME.heavyN.quiet` for their others.
    """

    def __init__(
        self, open_writer: Callable[[str], SpoolWriter], name: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_writer = open_writer
        self._name = name
        self._clock_s = clock_s
        self._writers = {ORDINARY: open_writer(name)}
        self._lanes = Lanes()
        self._began_s = clock_s()

    @property
    def records(self) -> int:
        """Written since the start."""
        return sum(writer.records for writer in self._writers.values())

    def append(self, kind: RecordKind, body: bytes) -> None:
        """Queues a push or instance record. Raises SpoolFull."""
        sender = self._lanes.sender_of(kind, body)
        self._refuse_if_full(sender.payer.lane)
        self._writer_of(sender).append(kind, body)
        self._lanes.charge(sender, len(body))

    def append_all(self, kind: RecordKind, bodies: Sequence[bytes]) -> None:
        """Queues all of these records or none, each in its sender's lane of now. Raises SpoolFull."""
        senders = [self._lanes.sender_of(kind, body) for body in bodies]
        for lane in {sender.payer.lane for sender in senders}:
            self._refuse_if_full(lane)
        nbytes = sum(map(len, bodies))
        writers = [self._writer_of(sender) for sender in senders]
        for writer in set(writers):
            writer.reserve(nbytes, len(bodies))
        for writer, sender, body in zip(writers, senders, bodies, strict=True):
            writer.append(kind, body)
            self._lanes.charge(sender, len(body))

    def flush(self) -> None:
        """Writes all queued records. Raises OSError, after which some of them may have been written."""
        try:
            self._each(SpoolWriter.flush)
        finally:
            for lane in self._lanes.lanes:
                lane.is_full = self._is_over_share(lane)
            now_s = self._clock_s()
            if now_s - self._began_s >= _PERIOD_S:
                for lane in self._lanes.settle(now_s, now_s - self._began_s):
                    for writer in self._writers_of(lane):
                        writer.rest()
                self._began_s = now_s

    def sync(self) -> None:
        """As SpoolWriter.sync, for all writers. May run in a thread. Raises OSError."""
        self._each(SpoolWriter.sync)

    def close(self) -> None:
        """Flushes, syncs and closes all segments. Raises OSError."""
        try:
            self._each(SpoolWriter.close)
        except OSError as exc:
            raise OSError(exc.errno or EIO, f"cannot close the spool: {exc}") from exc

    def _each(self, action: Callable[[SpoolWriter], None]) -> None:
        """Raises the last OSError, after all writers had their turn."""
        failed: OSError | None = None
        for writer in list(self._writers.values()):
            try:
                action(writer)
            except OSError as exc:
                failed = exc
        if failed is not None:
            raise failed

    def _writer_of(self, sender: Sender) -> SpoolWriter:
        place = self._lanes.place_of(sender)
        writer = self._writers.get(place)
        if writer is None:
            number, is_quiet = divmod(place - 1, 2)
            name = self._name if place == ORDINARY else heavy_writer(self._name, number, is_quiet == 1)
            writer = self._writers[place] = self._open_writer(name)
        return writer

    def _writers_of(self, lane: Lane) -> list[SpoolWriter]:
        return [self._writers[place] for place in (lane.place, lane.place + 1) if place in self._writers]

    def _is_over_share(self, lane: Lane) -> bool:
        """As one of its writers says: each measures when it writes."""
        return any(writer.is_over_share(_FREE_TIMES) for writer in self._writers_of(lane))

    def _refuse_if_full(self, lane: Lane | None) -> None:
        """While all records are refused nothing is flushed: the reader may have made room since."""
        if lane is not None and lane.is_full and self._is_over_share(lane):
            raise SpoolFull("the largest sender's part of the spool is full")
