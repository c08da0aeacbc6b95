"""Reads the spool: follows the segments of all writers. Its only state is its position.

`begin` fixes a batch as a (segment, start, end) range before it is written to the store: after a crash of either side
the same range is read again with the same token. Positions, the begun range and the totals are saved together
(positions.py), so counts are as exact as positions.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from exporters.spool.positions import NewerFormat, PositionFiles, State, Totals, segment_sizes
from exporters.spool.records import (
    FORMAT,
    FRAME,
    FREE_SUFFIX,
    SUFFIX,
    Record,
    SegmentName,
    frame_bytes,
    is_heavy,
    payers_writer,
    read_name,
    scan,
)

_COUNTED_BYTES = 1 << 18  # read size when records are only counted


class Waiting(NamedTuple):
    """The unread part of a segment."""

    records: int
    nbytes: int
    uncounted_bytes: int  # whose records are not in `records`


class FollowedSegment:
    """Open until `close`. Records before `position` are finished. All methods raise OSError."""

    def __init__(self, path: Path, named: SegmentName, position: int) -> None:
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
        """Counts further records in at most about `max_bytes`, up to damage. Returns the number of bytes read."""
        size, mark = self.size, self.named.mark
        nbytes, done = _COUNTED_BYTES, 0
        self._is_behind = True
        while self._counted_to < size:
            if done >= max_bytes:
                return done
            room = size - self._counted_to
            data = self.read(nbytes, self._counted_to)
            done += len(data)
            if self.named.reused:
                # By checksums, because the size of a reused segment does not tell where its records end.
                scanned = scan(data, mark, len(data))
                if scanned.corrupt:  # or written during the read: what is before a record that was seen is complete now
                    scanned = scan(self.read(scanned.end, self._counted_to), mark, scanned.end)
                counted, at = len(scanned.records) + scanned.corrupt, scanned.end
            else:  # by their heads alone
                counted = at = 0
                while 0 < (whole := frame_bytes(data[at : at + FRAME.size], mark)) <= room - at:
                    at += whole
                    counted += 1
            if at == 0:
                whole = frame_bytes(data[: FRAME.size], mark)
                if not nbytes < whole <= room:
                    break
                nbytes = whole
            self._ahead += counted
            self._counted_to += at
        self._is_behind = False
        return done


logger = structlog.get_logger(__name__)

_RECORD_COST = 500  # beside its bytes: see exporters.spool.writer
_HEAVY_COSTS = 16
_MAX_FREE = 4  # finished segments kept to be overwritten; a writer closes full ones once a second
_COUNTED_AT_ONCE_BYTES = 32 << 20  # of a backlog, at each look


@dataclass(frozen=True, slots=True)
class Batch:
    """A fixed range of a segment and the records in it."""

    segment: str
    start: int
    end: int
    records: list[Record]
    corrupt: int  # stretches of damage inside the range
    ends: list[tuple[int, int]] = field(default_factory=list, compare=False)  # as records.Scan

    @property
    def token(self) -> str:
        """Identifies the range permanently; no other records ever get the same token."""
        return f"{self.segment.removesuffix(SUFFIX)}:{self.start}-{self.end}"

    @property
    def writer(self) -> str:
        named = read_name(self.segment)
        return named.writer if named else ""

    def first(self, count: int) -> Batch:
        """A batch of the first `count` records, at least one."""
        if count >= len(self.records):
            return self
        end, corrupt = self.ends[count - 1]
        return replace(
            self, end=self.start + end, records=self.records[:count], corrupt=corrupt, ends=self.ends[:count]
        )


class _Served:
    def __init__(self) -> None:
        self._cost: dict[str, float] = {}  # of what was committed, by writer
        self._now = 0.0

    def in_turn(self, writers: Iterable[str]) -> list[tuple[str, float]]:
        """The one that was served least first, each with the start of its turn."""
        return sorted(((w, max(self._cost.get(w, 0.0), self._now)) for w in writers), key=lambda turn: turn[1])

    def begin(self, writer: str, start: float) -> None:
        self._now = self._cost[writer] = start

    def add(self, writer: str, cost: float) -> None:
        self._cost[writer] = self._cost.get(writer, self._now) + cost


class SpoolReader:
    """Reads the segments of all writers in `directory`. One reader per directory at a time.

    Call `next_batch`, `begin`, store the records, `commit`. After a crash between begin and commit, the next reader's
    first batch is the same range with the same token. `totals` counts committed records; `note` is the value passed to
    the last commit. Both are persistent.
    """

    def __init__(self, directory: Path, on_segment: Callable[[Path], None] = lambda _: None) -> None:
        """Calls `on_segment` with each segment that it opens (mirror.py).

        Raises BlockingIOError when the directory has a reader, OSError (also NewerFormat) when it cannot be read.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._on_segment = on_segment
        self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # held until it is closed
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files = PositionFiles(directory)
        except OSError as exc:
            os.close(self._lock)
            if isinstance(exc, BlockingIOError):
                raise BlockingIOError(exc.errno, "another storage worker reads the spool", str(directory)) from exc
            raise
        state = self._files.state
        self._saved = state.positions
        self.is_counted = False  # whether `buffered` is exact: a large backlog is counted in steps
        self._segments: dict[str, FollowedSegment] = {}
        self._unfreed: dict[str, int] = {}  # finished segments that are not freed yet: name -> end
        self._served = _Served()  # by the writers that stand for payers
        self._served_within: dict[str, _Served] = {}  # of each of these, by its writers
        self.totals = state.totals
        self.note = state.note
        self.isolated = state.isolated  # by table, what `isolate` saved of the begun batch
        self.unsure = set(state.unsure)  # segments whose position was lost: the store may have some of their records
        self._begun: Batch | None = None
        try:
            self._follow()
        except OSError:
            self.close()
            raise
        if self._files.is_new:
            self.unsure = set(self._segments)
        if state.intent and (segment := self._segments.get(state.intent[0])) is not None:
            name, start, end = state.intent
            scanned = scan(segment.read(end - start, start), segment.named.mark, end - start)
            if scanned.records:  # otherwise a power loss destroyed the batch that was begun
                self._begun = Batch(name, start, end, scanned.records, scanned.corrupt, scanned.ends)

    def next_batch(self, max_records: int, max_bytes: int) -> Batch | None:
        """The next records of one segment, or None. A begun batch is returned again until it is committed.

        Serves the payers' writers in turn, and the writers of one payer in turn, by start-time fair queueing (Goyal,
        Vin, Cheng 1996): the next batch is of the writer that was served least; one that had nothing to read gains
        nothing by it. What heavy writers are served counts _HEAVY_COSTS times. Reads the segments of a writer in order
        of age. Returns at least one record, however large. Raises OSError.
        """
        if self._begun is not None:
            return self._begun
        waiting: dict[str, dict[str, list[str]]] = {}
        for name in self._follow():
            writer = self._segments[name].named.writer
            waiting.setdefault(payers_writer(writer), {}).setdefault(writer, []).append(name)
        for payers, start in self._served.in_turn(sorted(waiting)):
            within = self._served_within.setdefault(payers, _Served())
            for writer, start_within in within.in_turn(sorted(waiting[payers], reverse=True)):  # the quiet one first
                for name in waiting[payers][writer]:
                    if (batch := self._read(name, max_records, max_bytes)) is not None:
                        self._served.begin(payers, start)
                        within.begin(writer, start_within)
                        return batch
        return None

    def batch_of(self, segment: str, max_records: int, max_bytes: int) -> Batch | None:
        """The next records of this segment, or None. Raises OSError."""
        return self._read(segment, max_records, max_bytes) if segment in self._follow() else None

    def begin(self, batch: Batch) -> None:
        """Saves that this batch is about to be stored with its token. Raises OSError."""
        if batch is self._begun:
            return
        self._save(self._positions(), self.totals, self.note, (batch.segment, batch.start, batch.end))
        self._begun, self.isolated = batch, {}

    def isolate(self, table: str, piece: int) -> None:
        """Saves that a piece of the begun batch is written to this table in halves from now on; if negative, that piece
        `-piece` was refused. The whole batch is piece 1, the halves of N are 2N and 2N + 1. Raises OSError."""
        assert self._begun is not None
        intent = (self._begun.segment, self._begun.start, self._begun.end)
        isolated = {**self.isolated, table: [*self.isolated.get(table, ()), piece]}
        self._save(self._positions(), self.totals, self.note, intent, isolated)
        self.isolated = isolated

    @property
    def has_begun(self) -> bool:
        """Whether the next batch was begun before and must not be split."""
        return self._begun is not None

    def release(self) -> None:
        """Abandons a begun batch, to read its range in smaller ones. Tables that have it already get its rows twice."""
        self._begun = None

    def commit(self, batch: Batch, note: Mapping[str, Any] | None = None) -> None:
        """Marks these records as finished; frees the segment when it is read to its end and its writer has closed it.

        `note` (JSON types) replaces the previous one. After an OSError the batch is still begun.
        """
        totals = replace(
            self.totals,
            records=self.totals.records + len(batch.records),
            bytes=self.totals.bytes + batch.end - batch.start,
            corrupt=self.totals.corrupt + batch.corrupt,
        )
        note = dict(self.note if note is None else note)
        self._save(self._positions() | {batch.segment: batch.end}, totals, note, None)
        self._begun, self.isolated, self.totals, self.note = None, {}, totals, note
        self._segments[batch.segment].move_on(batch.end, len(batch.records) + batch.corrupt)
        cost = batch.end - batch.start + _RECORD_COST * len(batch.records)
        payers, costs = payers_writer(batch.writer), _HEAVY_COSTS if is_heavy(batch.writer) else 1
        self._served.add(payers, cost * costs)
        self._served_within.setdefault(payers, _Served()).add(batch.writer, cost)
        self._delete_if_done(batch.segment, seen_to=batch.end)

    def buffered(self, writer: str | None = None) -> tuple[int, int]:
        """Records and bytes that are not committed yet, of all writers or of one. Raises OSError.

        Counts at most 32 MiB of new data per call and estimates the rest; see `is_counted`.
        """
        records, nbytes, uncounted, budget = 0, 0, 0, _COUNTED_AT_ONCE_BYTES
        for name in self._follow():
            segment = self._segments[name]
            if writer is not None and segment.named.writer != writer:
                continue
            budget -= segment.count_ahead(budget)
            here = segment.waiting()
            records, nbytes, uncounted = records + here.records, nbytes + here.nbytes, uncounted + here.uncounted_bytes
        if writer is None:
            self.is_counted = not uncounted
        if uncounted:
            records += round(records * uncounted / (nbytes - uncounted)) if nbytes > uncounted else 1
        return records, nbytes

    def close(self) -> None:
        """Closes all files. The next reader gets a begun batch again."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        os.close(self._lock)

    def _follow(self) -> list[str]:
        """Opens new segments; returns all unfinished segments, oldest first."""
        for name in list(self._unfreed):
            self._free(name)
        names = []
        for name in segment_sizes(self._directory):
            if name in self._unfreed:
                continue
            named = read_name(name)
            if named is None or named.format > FORMAT:  # what is skipped would count as spooled and never be stored
                raise NewerFormat(
                    f"{name} is no segment of format {FORMAT}: start the version of Headroom that wrote it, or move it"
                    " away"
                )
            if name not in self._segments:
                try:
                    self._segments[name] = FollowedSegment(self._directory / name, named, self._saved.get(name, 0))
                except FileNotFoundError:  # its writer removed it
                    continue
                self._on_segment(self._directory / name)
            names.append(name)
        # A writer removes a segment if its first flush fails.
        for name in self._segments.keys() - set(names):
            segment = self._segments[name]
            if not (self._directory / name).exists() and not (self._begun and self._begun.segment == name):
                segment.close()
                del self._segments[name]
        return names

    def _read(self, name: str, max_records: int, max_bytes: int) -> Batch | None:
        segment = self._segments[name]
        start, readable = segment.position, segment.readable_bytes()
        while True:
            data = segment.read(min(max_bytes, readable), start)
            scanned = scan(data, segment.named.mark, max_records)
            if scanned.records:
                return Batch(name, start, start + scanned.end, scanned.records, scanned.corrupt, scanned.ends)
            if len(data) < max_bytes:
                torn = not segment.named.reused or segment.named.mark.to_bytes(4).startswith(data[:4])
                self._delete_if_done(name, seen_to=start + len(data), torn=torn)
                return None
            max_bytes *= 2

    def _positions(self) -> dict[str, int]:
        return self._unfreed | {name: segment.position for name, segment in self._segments.items()}

    def _save(
        self,
        positions: dict[str, int],
        totals: Totals,
        note: dict[str, Any],
        intent: tuple[str, int, int] | None,
        isolated: Mapping[str, list[int]] | None = None,
    ) -> None:
        self._files.save(State(positions, intent, dict(isolated or {}), totals, note, sorted(self.unsure)))

    def _delete_if_done(self, name: str, *, seen_to: int, torn: bool = True) -> None:
        """Frees a segment that its writer has closed and that contains no record after `seen_to`.

        `torn`: the bytes before `seen_to` that are not a record are a partly written one.
        """
        segment = self._segments[name]
        if segment.is_being_written() or segment.size > seen_to:
            return  # or written between our look and the writer's leaving
        if torn and seen_to > segment.position:
            nbytes = seen_to - segment.position
            logger.warning("a segment ends in the middle of a record", segment=name, nbytes=nbytes)
            self.totals = replace(self.totals, torn=self.totals.torn + 1)
        segment.close()  # and with it our lock, before a writer may take the file
        del self._segments[name]
        self.unsure.discard(name)
        self._unfreed[name] = seen_to  # its records are stored and must not be read again, even if freeing it fails
        fault = self._free(name)
        if fault is not None:
            logger.error("cannot free a finished segment, will retry", segment=name, cause=str(fault))

    def _free(self, name: str) -> OSError | None:
        """Lets go of a finished segment, unless it is still needed. Returns any error."""
        try:
            if not self._let_go(self._directory / name):
                return None
        except FileNotFoundError:
            pass
        except OSError as exc:
            return exc
        del self._unfreed[name]
        return None

    def _let_go(self, segment: Path) -> bool:
        """Keeps a few finished segments for reuse (SpoolWriter._take_free), deletes others.

        A segment that another reader still reads by a second link is not reused.
        """
        free = sum(1 for _ in self._directory.glob(f"*{FREE_SUFFIX}"))
        if free < _MAX_FREE and segment.stat().st_nlink == 1:
            segment.rename(segment.with_suffix(FREE_SUFFIX))
        else:
            segment.unlink()
        return True
