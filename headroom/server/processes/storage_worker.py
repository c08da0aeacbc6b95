"""The parent's side of the storage worker: its last reports, whether it makes progress, and what follows its death."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import structlog

from exporters.model import DropReason
from headroom.server.processes.child import ChildProcess, ChildValues
from headroom.server.processes.messages import Message
from headroom.server.processes.storage_process import WorkerSettings
from telemetry.ingest.progress import Stage, suspect_after

log = structlog.get_logger(__name__)

_NO_PROGRESS_S = 30.0  # of a worker that decodes or sends no message
_NO_ANSWER_S = 600.0  # of a worker that waits for the store; its client's timeouts are shorter
_IDLE_LIMITS_S = {Stage.DECODING: _NO_PROGRESS_S, Stage.WRITING: _NO_ANSWER_S}

_VALUES = ChildValues(
    "the storage worker",
    (sys.executable, "-m", "headroom.server.processes.storage_process"),
    restart_after_max_s=1.0,
    silent_s=_NO_PROGRESS_S,
)


class StorageWorker:
    """One worker process at a time: `child`. It is ready when it has tried to reach the store once."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Not ready when nothing was written for `store.stalled_ms` while records are buffered. Also not ready for as
        long after a refusal, but only until the store accepts other records.
        """
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
        self._idle_s = 0.0  # since the worker last advanced, as reported at `_heard_at_s`
        self._heard_at_s = time.monotonic()
        self._batch: tuple[str, int, int] | None = None  # segment, start and end of the current batch

    @property
    def store_up(self) -> bool:
        """Whether the store accepts rows."""
        return self.child.alive and self._fault is None

    @property
    def not_ready_reason(self) -> str | None:
        """Why the service is not ready; None when it is. Short outages of a store once reached do not count."""
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
            if self._idle_s > _IDLE_LIMITS_S.get(message["stage"], math.inf) and not self.child.is_stopping:
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
    """Tracks when the worker last wrote or was idle, and whether the store refuses all records.

    A client can send a record that the store refuses. A refusal therefore does not affect readiness as long as other
    records are written, in the same batch or a later one.
    """

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
        """Why the store is not ready; None when it is."""
        if now_s - self._refused_at_s < stalled_s:
            return "the store refuses records"
        if not self._waiting or now_s - self._moved_at_s < stalled_s:
            return None
        cause = f": {fault}" if fault else ""
        return f"nothing was written for {now_s - self._moved_at_s:.0f} s although the spool holds records{cause}"


def accounted(counts: dict[str, Any]) -> int:
    """The records that a worker accounts for, without those of `headroom quarantine replay`."""
    return int(counts["written"] + counts["dropped"] + counts["buffered"] - counts["replayed"])
