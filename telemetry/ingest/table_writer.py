"""Writes the rows of a batch to one table; isolates failing rows by bisection, so that the others are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog

from exporters.clickhouse.store import Store, TransientWriteError
from telemetry.ingest.decoded_batch import Built, TableRows
from telemetry.ingest.progress import Progress, Stage

log = structlog.get_logger(__name__)

_ATTEMPTS = 2  # attempts with the whole batch before bisection
# After this many isolated items without an accepted one, the rest is dropped at once: a quarantine file each, but no
# insert.
_MAX_ISOLATED = 64


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
        self._logged: set[str] = set()  # tables whose refusal was logged

    def write(self, rows: TableRows, token: str, isolated: bool, isolate: Callable[[], None]) -> WrittenTable:
        """After a TransientWriteError, the same call continues and writes nothing twice.

        `isolate` is called before the first half is written, and may raise OSError. From then on, even after a crash,
        `isolated` must be True: the whole batch has another token than its halves, so its rows would be stored twice.
        """
        halving = _Halving()
        if isolated:
            self._isolate(rows, rows.items, f"{rows.table}:{token}", halving, "")
            return WrittenTable(halving.failed, halving.hours, halving.clamped_timestamps)
        for attempt in range(_ATTEMPTS):
            cause = self._insert(rows, rows.items, f"{rows.table}:{token}", halving, keep=True)
            if cause is None:
                break
            if attempt + 1 == _ATTEMPTS:
                self._log(rows, cause)
                if len(rows.items) > 1:
                    isolate()
                self._isolate(rows, rows.items, f"{rows.table}:{token}", halving, cause)
        self._built = None
        return WrittenTable(halving.failed, halving.hours, halving.clamped_timestamps)

    def _isolate(self, rows: TableRows, items: Sequence[Any], token: str, halving: _Halving, cause: str) -> None:
        """`items` failed as a whole."""
        if len(items) <= 1 or (not halving.accepted and len(halving.failed) >= _MAX_ISOLATED):
            halving.failed += [Failed(item, cause) for item in items]
            return
        middle = len(items) // 2
        for number, half in enumerate((items[:middle], items[middle:])):
            cause_of_half = self._insert(rows, half, f"{token}/{number}", halving)
            if cause_of_half is not None:
                self._isolate(rows, half, f"{token}/{number}", halving, cause_of_half)

    def _insert(
        self, rows: TableRows, items: Sequence[Any], token: str, halving: _Halving, *, keep: bool = False
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
                halving.accepted = True
        except TransientWriteError:
            raise
        except Exception as exc:  # noqa: BLE001 - a refusal of the store or an internal error: both are isolated
            return " ".join(str(exc).split()) or repr(exc)
        finally:
            self._progress.advance(Stage.DECODING)
        halving.hours.update(built.hours)
        halving.clamped_timestamps += built.clamped_timestamps
        return None

    def _log(self, rows: TableRows, cause: str) -> None:
        """Logs once per table."""
        if rows.table not in self._logged:
            self._logged.add(rows.table)
            log.error("rows cannot be written, isolating them", table=rows.table, records=len(rows.items), cause=cause)


class _Halving:
    """The progress of one table of one batch."""

    def __init__(self) -> None:
        self.failed: list[Failed] = []
        self.accepted = False
        self.hours: set[int] = set()
        self.clamped_timestamps = 0
