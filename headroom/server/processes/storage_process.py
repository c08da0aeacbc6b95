"""The storage worker's process: follows the spool and writes to ClickHouse.

Started by storage_supervisor.py as `python -m headroom.server.processes.storage_process`. The first line of its
standard input is its settings as JSON (the password of the store is among them). It talks to its parent by lines of
JSON on standard output: first {"counts": {...}, "fault": TEXT or null} or {"error": TEXT}, then {"counts": {...},
"fault": TEXT or null} and {"stage": TEXT, "idle_s": NUMBER} every second, {"batch": [segment, start, end]} before a
batch is read and {"batch": null} when it is stored. A server that is away is a fault, and is waited for. When
standard input closes it drains the spool and ends, so that it never outlives its parent for long; when the parent died
it drains nothing: the next worker waits for it, and the next parent for that one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import stamina
import stamina.instrumentation
import structlog

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import PermanentWriteError, Store, TransientWriteError, UnsupportedServerError
from exporters.spool.reader import Batch, SpoolReader
from headroom.clock import now_ms
from headroom.logs import configure_logging
from telemetry.ingest.ingester import Ingester
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from telemetry.ingest.suspect import Suspect

log = structlog.get_logger(__name__)

_NICENESS = 10  # who waits for an acknowledgement goes first: what is in the spool can wait for a core
_TELL_EVERY_S = 1.0
_PREDECESSOR_S = 40.0  # less than the parent waits for us
_FAULT_LOGGED_EVERY_S = 60.0
_FIRST_LOOK_S = 5.0
_LOOKED_AT_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the parent tells its worker."""

    spool: str
    clickhouse: str  # URL with the user, without the password
    clickhouse_password: str
    max_decompressed_bytes: int
    batch_ms: int
    batch_records: int
    batch_bytes: int
    rollup_ms: int
    quarantine: str  # a directory
    quarantine_records: int
    quarantine_bytes: int
    suspect: tuple[str, int, int, int, int] | None = None  # fields of telemetry.ingest.suspect.Suspect


def main() -> int:
    """Runs until standard input closes and the spool is drained."""
    settings = WorkerSettings(**json.loads(sys.stdin.buffer.readline()))
    for ignored in (signal.SIGINT, signal.SIGTERM):  # a terminal's Ctrl-C reaches us too: the parent decides
        signal.signal(ignored, signal.SIG_IGN)
    os.nice(_NICENESS)
    parent = _take_standard_output()
    configure_logging()
    stamina.instrumentation.set_on_retry_hooks([])  # a store that is away is told of by ourselves, and not each time
    try:
        reader = _open_spool(Path(settings.spool))
        store = Store(Endpoint.parse(settings.clickhouse, settings.clickhouse_password))
        follower = _Follower(reader, store, settings, parent)
        follower.begin()
    except (_OpenError, UnsupportedServerError) as exc:
        _tell(parent, {"error": " ".join(str(exc).split())})
        return 1
    follower.run()
    store.close()
    reader.close()
    return 0


class _OpenError(Exception):
    """The message is one line for the user."""


class _Follower:
    """The loop: spool to store, with patience when the store is away."""

    def __init__(self, reader: SpoolReader, store: Store, settings: WorkerSettings, parent: TextIO) -> None:
        self._store = store
        self._migrated = False
        self._unsupported: UnsupportedServerError | None = None
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._fault: str | None = None  # why nothing can be written
        self._fault_logged_at = -_FAULT_LOGGED_EVERY_S
        self._settings = settings
        self._parent = parent
        self._parent_pid = os.getppid()
        self._stopping = threading.Event()
        self._logged_at = 0.0
        self._progress = Progress(time.monotonic)
        self._telling = threading.Lock()
        self._has_told = threading.Event()  # the first message is that of `begin`
        self._ingester = Ingester(
            reader,
            store,
            Quarantine(Path(settings.quarantine), settings.quarantine_records, settings.quarantine_bytes),
            max_decompressed_bytes=settings.max_decompressed_bytes,
            rollup_interval_ms=settings.rollup_ms,
            max_records=settings.batch_records,
            max_bytes=settings.batch_bytes,
            progress=self._progress,
            suspect=Suspect(*settings.suspect) if settings.suspect else None,
            on_batch=self._tell_batch,
        )

    def begin(self) -> None:
        """The first look at the store, and the first words to the parent, also when the store does not say a word.

        Raises UnsupportedServerError.
        """
        threading.Thread(target=self._wait_for_parent, daemon=True).start()
        threading.Thread(target=self._tell_progress, daemon=True).start()
        self._looking.start()
        self._looking.join(_FIRST_LOOK_S)
        if self._unsupported is not None:
            raise self._unsupported
        fault = "the store does not answer" if self._looking.is_alive() else self._fault
        self._tell({"counts": self.counts(), "fault": fault})

    def run(self) -> None:
        """Until standard input closes."""
        while self._looking.is_alive():
            if self._stopping.wait(_LOOKED_AT_EVERY_S):
                return
        while not self._stopping.is_set():
            self._settled(attempts=None)
            self._ingester.roll_up(now_ms)
            self._tell_counts()
            self._stopping.wait(self._settings.batch_ms / 1000)
        self._settled(attempts=1)

    def _look(self) -> None:
        try:
            self._migrate()
        except UnsupportedServerError as exc:
            self._unsupported = exc
        except Exception as exc:  # noqa: BLE001 - `run` tries it again, and ends of what it does not know
            self._failed(exc)

    def counts(self) -> dict[str, Any]:
        """What became of all that was ever in the spool."""
        return self._ingester.as_dict()

    def _settled(self, attempts: int | None) -> None:
        """Writes all that is in the spool; keeps trying while the store is away, `attempts` times or for ever."""
        try:
            for attempt in stamina.retry_context(
                on=self._is_worth_another_try, attempts=attempts, timeout=None, wait_initial=0.2, wait_max=5.0
            ):
                with attempt:
                    self._migrate()
                    while not self._orphaned() and self._ingester.step(now_ms()):
                        self._tell({"batch": None})
                        self._mended()
                        self._tell_counts()
                        if not self._stopping.is_set():
                            self._ingester.roll_up(now_ms)
                    self._mended()
        except (TransientWriteError, PermanentWriteError) as exc:
            log.warning("stopped before all was written: the spool keeps it", error=_one_line(exc))

    def _migrate(self) -> None:
        """Once, with a look whether rows are kept. Raises TransientWriteError, PermanentWriteError."""
        if not self._migrated:
            self._store.migrate()
            self._store.check()
            self._migrated = True
            self._mended()

    def _is_worth_another_try(self, exc: Exception) -> bool:
        if not isinstance(exc, TransientWriteError | PermanentWriteError):
            return False
        self._failed(exc)
        self._tell_counts()
        return not (self._orphaned() or self._stopping.is_set())

    def _failed(self, exc: Exception) -> None:
        """Told at once, and then each minute."""
        self._fault = _one_line(exc)
        if time.monotonic() - self._fault_logged_at >= _FAULT_LOGGED_EVERY_S:
            self._fault_logged_at = time.monotonic()
            log.error("the store takes nothing, the spool keeps it", error=self._fault)

    def _mended(self) -> None:
        if self._fault is not None:
            self._fault, self._fault_logged_at = None, -_FAULT_LOGGED_EVERY_S
            log.info("the store takes rows again")

    def _orphaned(self) -> bool:
        return os.getppid() != self._parent_pid

    def _tell_counts(self) -> None:
        if time.monotonic() - self._logged_at >= _TELL_EVERY_S:
            self._logged_at = time.monotonic()
            self._tell({"counts": self.counts(), "fault": self._fault})

    def _tell_batch(self, batch: Batch) -> None:
        self._tell({"batch": [batch.segment, batch.start, batch.end]})

    def _tell_progress(self) -> None:
        """In a thread of its own: it goes on while the other one is busy, and stops when the process hangs."""
        self._has_told.wait()
        while not self._stopping.wait(_TELL_EVERY_S):
            self._tell({"stage": self._progress.stage, "idle_s": self._progress.idle_s})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._telling:
            _tell(self._parent, message)
        self._has_told.set()

    def _wait_for_parent(self) -> None:
        sys.stdin.buffer.read()  # ends when the parent closes it, or dies
        self._stopping.set()


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or repr(exc)


def _open_spool(directory: Path) -> SpoolReader:
    """Waits for the worker of a parent that died: it ends after the batch that it is writing. Raises _OpenError."""
    try:
        for attempt in stamina.retry_context(
            on=BlockingIOError, attempts=None, timeout=_PREDECESSOR_S, wait_initial=0.05, wait_max=0.5
        ):
            with attempt:
                return SpoolReader(directory)
    except OSError as exc:
        raise _OpenError(f"cannot open the spool: {exc}") from exc
    raise AssertionError("not reached: the last attempt returns or raises")


def _take_standard_output() -> TextIO:
    """Standard output for our lines alone: whatever a library prints goes to standard error."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


def _tell(parent: TextIO, message: dict[str, Any]) -> None:
    try:
        parent.write(json.dumps(message) + "\n")
    except BrokenPipeError:  # the parent is gone; our input tells us so too
        log.debug("parent is gone")


if __name__ == "__main__":
    sys.exit(main())
