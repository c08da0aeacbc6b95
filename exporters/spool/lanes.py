"""The spool of pushes: segments of their own for those who send most, so that a flood waits behind itself.

Who pays for a push (`exporters.identity.payer_of`) chooses its segments, by what it sent in the last seconds: payers of
ordinary size share the writer `NAME`, each of the largest has a writer `NAME.heavyN`. The reader serves writers in
turn, so a record waits for records of its own writer and for at most one batch of each other. Batches stay ranges of
one segment, with their tokens.

What a push costs is how many rows it may become: its bytes, since ingest bounds points per byte, and a constant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from errno import EIO
from typing import Final

from exporters.identity import payer_of
from exporters.model import RecordKind
from exporters.spool.records import CONNECTION_AT, decode_connection, heavy_writer
from exporters.spool.writer import SpoolFull, SpoolWriter

_PUSH: Final = RecordKind.PUSH  # enum member access is slow in Python 3.11
PUSH_COST: Final = 500  # rows that ingest allows for the smallest push
_HEAVY_PER_S: Final = 100_000  # a fleet of 700 Java clients that push every 10 s
_LIGHT_SHARE: Final = 0.5  # of that: below it for _LIGHT_AFTER_S a payer is ordinary again
_LIGHT_AFTER_S: Final = 10.0
_PERIOD_S: Final = 1.0
_MAX_LANES: Final = 8
_MAX_CONNECTIONS: Final = 65_536  # whose payer is remembered
_IDLE_S: Final = 60.0  # a lane without payers closes its segment, so that the reader can free it
_FREE_TIMES: Final = (
    4  # a heavy writer may hold four times what is free: alone 4/5 of the spool, and newcomers find room
)


class _Lane:
    """The writer of heavy payers, mostly of one."""

    def __init__(self, writer: SpoolWriter) -> None:
        self.writer = writer
        self.payers = 0
        self.idle_since_s = 0.0
        self.is_full = False  # as of the last flush


class _Payer:
    """What a payer sent in this period. `lane` is None for one of ordinary size."""

    def __init__(self, writer: SpoolWriter) -> None:
        self.writer = writer
        self.lane: _Lane | None = None
        self.spent = 0
        self.light_since_s = -1.0


class PushSpool:
    """Writes as SpoolWriter does, in the lanes of payers. `open_writer` opens a writer by its name."""

    def __init__(
        self, open_writer: Callable[[str], SpoolWriter], name: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_writer = open_writer
        self._name = name
        self._clock_s = clock_s
        self._ordinary = open_writer(name)
        self._lanes: list[_Lane] = []
        self._by_connection: dict[bytes, _Payer] = {}
        self._by_payer: dict[str, _Payer] = {}
        self._began_s = clock_s()

    @property
    def records(self) -> int:
        """Written since the start."""
        return sum(writer.records for writer in self._writers())

    def append(self, kind: RecordKind, body: bytes) -> None:
        """Queues a push or instance record. Raises SpoolFull."""
        at = CONNECTION_AT[kind is _PUSH]
        start = at + 4
        end = start + (body[at] << 8 | body[at + 1])
        connection = body[start:end]
        payer = self._by_connection.get(connection)
        if payer is None:
            payer = self._payer(connection)
        if payer.lane is None:
            payer.writer.append(kind, body)
            payer.spent += len(body) + PUSH_COST
            if payer.spent > _HEAVY_PER_S:
                self._separate(payer)
            return
        # While all records are refused nothing is flushed: the reader may have made room since.
        if payer.lane.is_full and payer.lane.writer.is_over_share(_FREE_TIMES):
            raise SpoolFull("the largest sender's part of the spool is full")
        payer.writer.append(kind, body)
        payer.spent += len(body) + PUSH_COST

    def reserve(self, body_bytes: int, records: int) -> None:
        """Raises SpoolFull unless all these records can be queued one after the other."""
        self._ordinary.reserve(body_bytes, records)

    def flush(self) -> None:
        """Writes all queued records. Raises OSError, after which some of them may have been written."""
        failed: OSError | None = None
        for writer in self._writers():
            try:
                writer.flush()
            except OSError as exc:
                failed = exc
        for lane in self._lanes:
            lane.is_full = lane.writer.is_over_share(_FREE_TIMES)
        now_s = self._clock_s()
        if now_s - self._began_s >= _PERIOD_S:
            self._settle(now_s, now_s - self._began_s)
            self._began_s = now_s
        if failed is not None:
            raise failed

    def sync(self) -> None:
        """As SpoolWriter.sync, for all writers. May run in a thread. Raises OSError."""
        failed: OSError | None = None
        for writer in self._writers():
            try:
                writer.sync()
            except OSError as exc:
                failed = exc
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Flushes, syncs and closes all segments. Raises OSError."""
        failed: OSError | None = None
        for writer in self._writers():
            try:
                writer.close()
            except OSError as exc:
                failed = exc
        if failed is not None:
            raise OSError(failed.errno or EIO, f"cannot close the spool: {failed}") from failed

    def _writers(self) -> list[SpoolWriter]:
        return [self._ordinary] + [lane.writer for lane in self._lanes]

    def _payer(self, connection: bytes) -> _Payer:
        try:
            found = decode_connection(connection)
            name = payer_of(found.principal, found.source_address)
        except ValueError:  # an address that a sender of OTLP states
            name = ""
        payer = self._by_payer.get(name)
        if payer is None:
            payer = self._by_payer[name] = _Payer(self._ordinary)
        if len(self._by_connection) >= _MAX_CONNECTIONS:
            self._by_connection.clear()
        self._by_connection[connection] = payer
        return payer

    def _separate(self, payer: _Payer) -> None:
        """Gives a payer a lane: an empty one, a new one, or that with the fewest payers."""
        lane = min(self._lanes, key=_payers_of, default=None)
        if lane is None or (lane.payers and len(self._lanes) < _MAX_LANES):
            lane = _Lane(self._open_writer(heavy_writer(self._name, len(self._lanes))))
            self._lanes.append(lane)
        lane.payers += 1
        payer.lane, payer.writer, payer.light_since_s = lane, lane.writer, -1.0

    def _settle(self, now_s: float, elapsed_s: float) -> None:
        """Ends a period: payers that send little again join the others; those that sent nothing are forgotten."""
        forgotten = False
        for name, payer in list(self._by_payer.items()):
            spent, payer.spent = payer.spent, 0
            lane = payer.lane
            if lane is None:
                if spent == 0 and len(self._by_payer) > _MAX_CONNECTIONS:
                    del self._by_payer[name]
                    forgotten = True
            elif spent > _LIGHT_SHARE * _HEAVY_PER_S * elapsed_s:
                payer.light_since_s = -1.0
            elif payer.light_since_s < 0:
                payer.light_since_s = now_s
            elif now_s - payer.light_since_s >= _LIGHT_AFTER_S:
                lane.payers -= 1
                lane.idle_since_s = now_s
                payer.lane, payer.writer = None, self._ordinary
        if forgotten:
            self._by_connection.clear()
        for lane in self._lanes:
            if not lane.payers and now_s - lane.idle_since_s >= _IDLE_S:
                lane.writer.rest()


def _payers_of(lane: _Lane) -> int:
    return lane.payers
