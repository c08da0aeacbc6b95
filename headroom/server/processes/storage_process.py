"""The storage worker's process: follows the spool and writes to ClickHouse.

StorageWorker is its parent's side; messages.py has the protocol. Its settings include the store's password. It sends
first {"ready": true, "counts": {...}, "fault": TEXT or null}, then {"counts", "fault"} and {"stage": TEXT, "idle_s":
NUMBER} every second, {"batch": [segment, start, end]} before a batch is read and {"batch": null} when it is stored. An
unreachable server is a fault, and the worker retries. At {"stop"} the worker drains the spool and exits. When the
parent died, it exits without draining; the next worker waits for it, and the next parent for that worker.
"""

import math
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import stamina
import stamina.instrumentation
import structlog

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import TIMEOUT_S, PermanentWriteError, Store, TransientWriteError
from exporters.model import DropReason
from exporters.printable import one_line
from exporters.spool.mirror import Mirror
from exporters.spool.reader import SpoolReader
from exporters.spool.records import holds_usage
from headroom.clock import now_ms
from headroom.config.settings import StoreConfig, TelemetryConfig
from headroom.config.types import Section
from headroom.errors import ServeError
from headroom.server.process_limits import tune_for_batches
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues
from headroom.server.processes.messages import READY, Message
from headroom.server.processes.parent_pipes import ParentThread, parent_of_background_process
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress, Stage, Suspect, suspect_after
from telemetry.ingest.quarantine import Quarantine

log = structlog.get_logger(__name__)

_REPORT_EVERY_S = 1.0
_PREDECESSOR_S = 40.0  # less than the parent's timeout for this process
_FAULT_LOGGED_EVERY_S = 60.0
_FIRST_TRY_S = 5.0
_FIRST_TRY_POLL_S = 0.2
_MANY_POINTS_S = 100_000  # from here on rows cost more than the batches themselves
_LONGER = 2  # times; a batch stays below its limit even at the 400,000 rows a second that one worker writes
_NO_PROGRESS_S = 30.0  # of a worker that decodes or sends no message

_VALUES = ChildValues(
    "the storage worker",
    (sys.executable, "-P", "-m", "headroom.server.processes.storage_process"),
    restart_after_max_s=1.0,
    silent_s=_NO_PROGRESS_S,
)


class WorkerSettings(Section):
    """The first message of the parent."""

    data: Path
    nodes: tuple[Endpoint, ...]
    store: StoreConfig
    telemetry: TelemetryConfig
    mirror_bytes: int = 0  # how much the forwarding process may leave in its mirror; 0: no forwarding
    suspect: Suspect | None = None


class StorageWorker:
    """One worker process at a time: `child`. It is ready when it has tried to reach the store once."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.child = ChildProcess(
            _VALUES,
            first=lambda: self.settings.model_dump(exclude={"store": {"server"}}),
            heard=self.heard,
            ended=self.suspect_batch,
        )
        self.settings = settings
        self.counts: dict[str, Any] = {}  # last reported; they include those of previous workers
        self.received_before = 0  # records in the spool before this start
        self._fault: str | None = None  # why the store accepts no rows, as last reported
        self._reached = False  # whether the store has ever accepted rows
        self._stalled_s = settings.store.stalled_ms / 1000
        self._progress = StoreProgress()
        # While it waits for the store, each node may let it wait for a connection and for a statement.
        no_answer_s = 2 * TIMEOUT_S * len(settings.nodes)
        self._idle_limits_s = {Stage.DECODING: _NO_PROGRESS_S, Stage.WRITING: no_answer_s}
        self._idle_s = 0.0  # since the worker last advanced, as reported at `_heard_at_s`
        self._heard_at_s = time.monotonic()
        self._batch: tuple[str, int, int] | None = None  # segment, start and end of the current batch

    @property
    def store_up(self) -> bool:
        return self.child.alive and self._fault is None

    @property
    def not_ready_reason(self) -> str | None:
        """Why the service is not ready; None when it is. Once the store was reached, that takes `store.stalled_ms` in
        which nothing was written while records wait, or a refusal, until the store accepts other records."""
        if not self.child.alive:
            return "the storage worker is not running"
        if not self._reached:
            return self._fault
        return self._progress.not_ready_reason(self._stalled_s, time.monotonic(), self._fault)

    @property
    def idle_s(self) -> float:
        """Seconds since the worker last decoded, wrote, or was idle."""
        return self._idle_s + time.monotonic() - self._heard_at_s

    def heard(self, message: Message) -> None:
        """Takes a message of the worker; kills a worker that makes no progress."""
        self._heard_at_s = time.monotonic()
        if "stage" in message:
            self._idle_s = 0.0 if message["stage"] == Stage.IDLE else message["idle_s"]
            if self._idle_s > self._idle_limits_s.get(message["stage"], math.inf) and not self.child.is_stopping:
                log.error("the storage worker makes no progress, killing it", stage=message["stage"], batch=self._batch)
                self.child.kill()
        elif "batch" in message:
            self._batch = tuple(message["batch"]) if message["batch"] else None
        else:
            if not self.counts:
                self.received_before = accounted(message["counts"])
            self.counts = message["counts"]
            self._fault = message["fault"]
            self._reached = self._reached or self._fault is None
            self._progress.heard(self.counts, time.monotonic())

    def suspect_batch(self) -> None:
        """Makes the next worker split the batch at which this one died."""
        if self._batch is not None:
            suspect = suspect_after(self.settings.suspect, *self._batch, self.settings.store.batch_records)
            self.settings = self.settings.model_copy(update={"suspect": suspect})
            log.warning("the batch will be read in pieces", **suspect._asdict())
            self._batch = None


class StoreProgress:
    """Tracks when the worker last wrote or was idle, and whether the store refuses all records. A client can send a
    record that the store refuses. A refusal therefore does not affect readiness as long as other records are written,
    in the same batch or a later one."""

    def __init__(self) -> None:
        self._settled: int | None = None  # records written or dropped, as last reported
        self._written: int | None = None
        self._refused: int | None = None
        self._moved_at_s = self._refused_at_s = -math.inf
        self._waiting = False

    def heard(self, counts: dict[str, Any], now_s: float) -> None:
        written, refused = counts["written"], counts["drop_reasons"][DropReason.REFUSED.value]
        settled = written + counts["dropped"]
        if settled != self._settled or not counts["buffered"]:
            self._settled, self._moved_at_s = settled, now_s
        self._waiting = counts["buffered"] > 0
        if self._written is not None and written > self._written:
            self._refused_at_s = -math.inf
        elif self._refused is not None and refused > self._refused:
            self._refused_at_s = now_s
        self._written, self._refused = written, refused

    def not_ready_reason(self, stalled_s: float, now_s: float, fault: str | None) -> str | None:
        if now_s - self._refused_at_s < stalled_s:
            return "the store refuses records"
        if not self._waiting or now_s - self._moved_at_s < stalled_s:
            return None
        cause = f": {fault}" if fault else ""
        return f"nothing was written for {now_s - self._moved_at_s:.0f} s although the spool holds records{cause}"


def accounted(counts: dict[str, Any]) -> int:
    """The records that a worker accounts for, without those of `headroom quarantine replay`."""
    return int(counts["written"] + counts["dropped"] + counts["buffered"] - counts["replayed"])


def main() -> int:
    """Runs until the parent sends stop and the spool is drained."""
    parent = parent_of_background_process()
    settings = WorkerSettings(**parent.settings)
    tune_for_batches()
    stamina.instrumentation.set_on_retry_hooks([])  # _failed logs an unreachable store, but not at each retry
    try:
        mirror = Mirror(settings.data / "forward", settings.mirror_bytes) if settings.mirror_bytes else None
        reader = _open_spool(settings.data / "spool", mirror)
        store = Store(*settings.nodes, options=settings.store.options)
        follower = _Follower(reader, store, settings, parent, mirror)
        follower.begin()
    except ServeError as exc:
        parent.send({"error": one_line(exc)})
        return 1
    follower.run()
    store.close()
    reader.close()
    return 0


class _Follower:
    """The loop that writes spool to store, and retries while the store is unreachable."""

    def __init__(
        self,
        reader: SpoolReader,
        store: Store,
        settings: WorkerSettings,
        parent: ParentThread,
        mirror: Mirror | None = None,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._migrated = False
        self._first_try = threading.Thread(target=self._try_store, daemon=True)
        self._fault: str | None = None  # why writes fail
        self._fault_logged_at = -_FAULT_LOGGED_EVERY_S
        self._batch_s = settings.store.batch_ms / 1000
        self._parent = parent
        self._stopping = parent.stopping
        self._logged_at = 0.0
        self._progress = Progress(time.monotonic)
        self._has_begun = threading.Event()  # set when `begin` has sent the first message
        self._ingester = Ingester(
            reader,
            store,
            Quarantine(
                settings.data / "quarantine", settings.store.quarantine_records, settings.store.quarantine_bytes
            ),
            IngestOptions(
                max_decompressed_bytes=settings.telemetry.max_decompressed_bytes,
                rollup_interval_ms=settings.store.rollup_ms,
                max_records=settings.store.batch_records,
                max_bytes=settings.store.batch_bytes,
                max_client_points=settings.telemetry.max_client_points,
                max_client_series=settings.telemetry.max_client_series,
            ),
            self._progress,
            suspect=settings.suspect,
            on_batch=lambda batch: self._send({"batch": [batch.segment, batch.start, batch.end]}),
        )

    def begin(self) -> None:
        """Tries to reach the store for _FIRST_TRY_S, then sends the first message, with a fault if that failed. A
        server that cannot be used is a fault like one that is away: Kafka's clients do not need it."""
        self._parent.follow()
        threading.Thread(target=self._report_progress, daemon=True).start()
        self._first_try.start()
        self._first_try.join(_FIRST_TRY_S)
        fault = "the store does not answer" if self._first_try.is_alive() else self._fault
        self._send({**READY, "counts": self.counts(), "fault": fault})

    def run(self) -> None:
        while self._first_try.is_alive():
            if self._stopping.wait(_FIRST_TRY_POLL_S):
                return
        interval_s = self._batch_s
        while not self._stopping.is_set():
            began_s, before = time.monotonic(), self._ingester.counts.points_written
            self._drain(attempts=None)
            self._ingester.roll_up(now_ms)
            self._report_counts()
            interval_s = next_interval_s(self._batch_s, interval_s, self._ingester.counts.points_written - before)
            self._stopping.wait(began_s + interval_s - time.monotonic())
        self._drain(attempts=1)

    def _try_store(self) -> None:
        try:
            self._migrate()
        except Exception as exc:  # noqa: BLE001 - `run` retries; an unexpected exception ends it there
            self._failed(exc)

    def counts(self) -> dict[str, Any]:
        """Of all records since the spool was created."""
        return {**self._ingester.as_dict(), "segments_not_forwarded": self._mirror.skipped if self._mirror else 0}

    def _drain(self, attempts: int | None) -> None:
        """Writes what the spool holds; retries while the store is unreachable, `attempts` times (None: forever)."""
        try:
            for attempt in stamina.retry_context(
                on=self._is_retried, attempts=attempts, timeout=None, wait_initial=0.2, wait_max=5.0
            ):
                with attempt:
                    self._migrate()
                    batches = self._ingester.batches(now_ms, everything=attempts is not None)
                    while not self._parent.is_orphan and next(batches, 0):
                        self._send({"batch": None})
                        self._recovered()
                        self._report_counts()
                        if not self._stopping.is_set():
                            self._ingester.roll_up(now_ms)
                    self._recovered()
        except (TransientWriteError, PermanentWriteError) as exc:
            log.warning("stopped before everything was written: the spool keeps the rest", error=one_line(exc))

    def _migrate(self) -> None:
        """Once; verifies that the store stores rows, and that all tables and views can be read. Raises
        TransientWriteError, PermanentWriteError."""
        if not self._migrated:
            self._store.migrate(SCHEMA_VALUES)
            self._store.check()
            self._store.check_reading(SCHEMA_VALUES)
            self._ingester.recall_series(now_ms())
            self._migrated = True
            self._recovered()

    def _is_retried(self, exc: Exception) -> bool:
        if not isinstance(exc, TransientWriteError | PermanentWriteError):
            return False
        self._failed(exc)
        self._report_counts()
        return not (self._parent.is_orphan or self._stopping.is_set())

    def _failed(self, exc: Exception) -> None:
        """Logs a fault at once, then once a minute."""
        self._fault = one_line(exc)
        if time.monotonic() - self._fault_logged_at >= _FAULT_LOGGED_EVERY_S:
            self._fault_logged_at = time.monotonic()
            log.error("the store does not accept rows, the spool keeps them", error=self._fault)

    def _recovered(self) -> None:
        if self._fault is not None:
            self._fault, self._fault_logged_at = None, -_FAULT_LOGGED_EVERY_S
            log.info("the store accepts rows again")

    def _report_counts(self) -> None:
        if time.monotonic() - self._logged_at >= _REPORT_EVERY_S:
            self._logged_at = time.monotonic()
            try:
                counts = self.counts()
            except OSError as exc:  # files of the spool cannot be read for a while: the next batch is retried, too
                self._failed(exc)
            else:
                self._send({"counts": counts, "fault": self._fault})

    def _report_progress(self) -> None:
        """Runs in its own thread, so that reports continue while the main thread is busy and stop when the process
        hangs."""
        self._has_begun.wait()
        while not self._stopping.wait(_REPORT_EVERY_S):
            self._send({"stage": self._progress.stage, "idle_s": self._progress.idle_s})

    def _send(self, message: Message) -> None:
        self._parent.send(message)
        self._has_begun.set()


def _open_spool(directory: Path, mirror: Mirror | None) -> SpoolReader:
    """Opens the spool; waits for the worker of a dead parent, which exits after its current batch. Raises
    ServeError."""
    try:
        for attempt in stamina.retry_context(
            on=BlockingIOError, attempts=None, timeout=_PREDECESSOR_S, wait_initial=0.05, wait_max=0.5
        ):
            with attempt:
                return SpoolReader(directory, partial(_link, mirror)) if mirror else SpoolReader(directory)
    except OSError as exc:
        raise ServeError(f"cannot open the spool: {exc}") from exc
    raise AssertionError("not reached: the last attempt returns or raises")


def _link(mirror: Mirror, segment: Path) -> None:
    """Usage and limits are not forwarded: segments without pushes are not linked."""
    if not holds_usage(segment.name):
        mirror.link(segment)


def next_interval_s(batch_s: float, last_s: float, points: int) -> float:
    """Seconds until the next batch is written. `points`: written now, collected for `last_s` seconds.

    A batch becomes one part of a ClickHouse table, and merging parts costs more than writing them. With many rows a
    second the worker collects for longer: half as many parts, of which each is twice as large, so that a row is merged
    less often.
    """
    return batch_s * _LONGER if points >= _MANY_POINTS_S * last_s else batch_s


if __name__ == "__main__":
    sys.exit(main())
