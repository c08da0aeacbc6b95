"""Writes the rows of a batch to one table; isolates failing rows by bisection, so that the others are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import structlog

from exporters.clickhouse.store import PermanentWriteError, Store, TransientWriteError
from exporters.model import RecordKind
from telemetry.ingest.progress import Progress, Stage

log = structlog.get_logger(__name__)

_ATTEMPTS = 2  # attempts with the whole batch before bisection
# After this many isolated items without an accepted one, the rest is dropped at once: a quarantine file each, but no
# insert.
_MAX_ISOLATED = 64
_REFUSED_BEFORE = "refused before the storage worker was started again"


class Built(NamedTuple):
    """Rows of one table. `hours` and `clamped_timestamps` are those of points."""

    rows: pa.Table
    hours: Sequence[int] = ()
    clamped_timestamps: int = 0


class TableRows(NamedTuple):
    """The records with rows in `table`; `build` accepts any subset of `items`.

    An int item is the number of a push in the batch; others are decoded spool records.
    """

    table: str
    kind: RecordKind
    items: Sequence[Any]
    build: Callable[[Sequence[Any]], Built]


class Failed(NamedTuple):
    """An item (see TableRows) that cannot be written."""

    item: Any
    cause: str


class WrittenTable(NamedTuple):
    """The outcome of the items of a table."""

    failed: list[Failed]
    hours: set[int]
    clamped_timestamps: int


class TableWriter:
    """The token of each insert consists of table, batch and path of the bisection, so that repeats are deduplicated."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._built: tuple[str, Built] | None = None  # the whole batch, while the store does not accept it
        self._sent: set[str] = set()  # tokens under which the store may have rows of this table
        self._causes: dict[int, str] = {}  # why pieces of the table that is being written were refused
        self._logged: set[str] = set()  # tables whose refusal was logged

    def write(
        self,
        rows: TableRows,
        token: str,
        isolated: Iterable[int],
        isolate: Callable[[int], None],
        *,
        replayed: bool = False,
    ) -> WrittenTable:
        """After a TransientWriteError or a crash, the same call continues and writes nothing twice.

        `isolate` saves which pieces were divided or refused (SpoolReader.isolate), before anything depends on it, and
        may raise OSError; `isolated` is what it saved. A divided piece is never written as a whole again, even if the
        store would accept it by now: it has another token than its halves, of which one may have been stored.
        `replayed`: an earlier process may have written the batch, in whole or in part.
        """
        pieces = _Pieces(set(isolated), isolate, replayed=replayed)
        self._write_piece(rows, rows.items, f"{rows.table}:{token}", 1, pieces)
        self._built = None
        self._causes.clear()
        self._sent.clear()
        return WrittenTable(pieces.failed, pieces.hours, pieces.clamped_timestamps)

    def _write_piece(self, rows: TableRows, items: Sequence[Any], token: str, number: int, pieces: _Pieces) -> None:
        if -number in pieces.isolated:
            pieces.failed += [Failed(item, self._causes.get(number, _REFUSED_BEFORE)) for item in items]
            return
        if number not in pieces.isolated:
            cause = self._attempt(rows, items, token, number, pieces)
            if cause is None:
                return
            if len(items) <= 1 or (not pieces.accepted and len(pieces.failed) >= _MAX_ISOLATED):
                self._causes[number] = cause
                pieces.isolate(-number)
                pieces.failed += [Failed(item, cause) for item in items]
                return
            pieces.isolate(number)
        middle = len(items) // 2
        for half, part in enumerate((items[:middle], items[middle:])):
            self._write_piece(rows, part, f"{token}/{half}", 2 * number + half, pieces)

    def _attempt(self, rows: TableRows, items: Sequence[Any], token: str, number: int, pieces: _Pieces) -> str | None:
        """The whole batch is attempted _ATTEMPTS times. Returns why the piece was refused, or None."""
        whole = number == 1
        for _ in range(_ATTEMPTS if whole else 1):
            cause = self._insert(rows, items, token, pieces, keep=whole)
            if cause is None:
                return None
        if whole and cause is not None:
            self._log(rows, cause)
        return cause

    def _insert(
        self, rows: TableRows, items: Sequence[Any], token: str, pieces: _Pieces, *, keep: bool = False
    ) -> str | None:
        """Writes these items; returns why they cannot be written, or None. Raises TransientWriteError."""
        try:
            if self._built is not None and self._built[0] == token:
                built = self._built[1]
            else:
                self._progress.advance(Stage.DECODING)
                built = rows.build(items)
            if keep:
                self._built = (token, built)
            self._progress.advance(Stage.WRITING)
            if built.rows.num_rows:
                self._store.insert(rows.table, built.rows, token=token)
                pieces.accepted = True
                self._sent.add(token)
        except TransientWriteError:
            self._sent.add(token)
            raise
        except PermanentWriteError as exc:
            # Refused now, but an earlier attempt may have stored it: its halves would double it.
            if not (pieces.replayed or token in self._sent) or not self._store.holds(rows.table, built.rows):
                return _one_line(exc)
            pieces.accepted = True
        except Exception as exc:  # noqa: BLE001 - an internal error is isolated as a refusal of the store is
            return _one_line(exc)
        finally:
            self._progress.advance(Stage.DECODING)
        pieces.hours.update(built.hours)
        pieces.clamped_timestamps += built.clamped_timestamps
        return None

    def _log(self, rows: TableRows, cause: str) -> None:
        """Logs once per table."""
        if rows.table not in self._logged:
            self._logged.add(rows.table)
            log.error("rows cannot be written, isolating them", table=rows.table, records=len(rows.items), cause=cause)


class _Pieces:
    """The progress of one table of one batch."""

    def __init__(self, isolated: set[int], save: Callable[[int], None], *, replayed: bool) -> None:
        self.isolated = isolated  # as SpoolReader.isolate numbers them
        self.failed: list[Failed] = []
        self.accepted = False
        self.hours: set[int] = set()
        self.clamped_timestamps = 0
        self.replayed = replayed
        self._save = save

    def isolate(self, piece: int) -> None:
        self._save(piece)
        self.isolated.add(piece)


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or repr(exc)
