"""The parent's side of the storage worker: starts it, reads its counts, restarts it when it dies, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import structlog

from exporters import self_metrics as catalogue
from exporters.model import DropReason
from exporters.self_metrics import SelfMetric, Values
from headroom.server.processes.child import finish
from headroom.server.processes.count_difference import CountDifference
from headroom.server.processes.storage_process import WorkerSettings
from telemetry.ingest.crash_range import Suspect, suspect_after
from telemetry.ingest.progress import Stage

log = structlog.get_logger(__name__)

_RESTART_AFTER_S = 1.0
_START_TIMEOUT_S = 60.0
_NO_PROGRESS_S = 30.0  # of a worker that decodes or sends no message
_WAITS = 6  # for a message, in that time
_NO_ANSWER_S = 600.0  # of a worker that waits for the store; its client's timeouts are shorter


class StorageError(Exception):
    """The store cannot be opened."""


class StorageWorker:
    """One worker process at a time."""

    def __init__(self, settings: WorkerSettings, stalled_ms: int = 60_000) -> None:
        """Not ready when nothing was written for `stalled_ms` while records are buffered. Also not ready for as long
        after a refusal, but only until the store accepts other records.
        """
        self.counts: dict[str, Any] = {}  # last reported; they include those of previous workers
        self.received_before = 0  # records in the spool before this start
        self.restarts = 0
        self.alive = False
        self._fault: str | None = None  # why the store accepts no rows, as last reported
        self._reached = False  # whether the store has ever accepted rows
        self._stalled_s = stalled_ms / 1000
        self._progress = _Progress()
        self.counted: Callable[[], None] = lambda: None  # called when `counts` change
        self._idle_s = 0.0  # since the worker last advanced, as reported at `_heard_at_s`
        self._heard_at_s = time.monotonic()
        self._batch: tuple[str, int, int] | None = None  # segment, start and end of the current batch
        self._suspect: Suspect | None = None
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def start(self) -> None:
        """Returns when the worker has tried to reach the store once. Raises StorageError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headroom.server.processes.storage_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._process = process
        assert process.stdin is not None
        with contextlib.suppress(RuntimeError):  # from uvloop, when the process has already ended; reported below
            process.stdin.write(json.dumps(asdict(self._settings)).encode() + b"\n")
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                first = await self._line(process)
        except TimeoutError as exc:
            process.kill()
            raise StorageError(f"cannot open the store: it did not open within {_START_TIMEOUT_S:.0f} s") from exc
        if "counts" not in first:
            await process.wait()
            raise StorageError(first.get("error", f"the storage worker ended with code {process.returncode}"))
        self.alive = True
        self._heard(first)
        if not self.restarts:
            self.received_before = accounted(self.counts)

    async def watch(self) -> None:
        """Reads the worker's messages and restarts it when it dies. Runs until `stop`."""
        while True:
            process = self._process
            assert process is not None
            while line := await self._next(process):
                self._heard(line)
            self.alive = False
            code = await process.wait()
            if self._stopping:
                return
            self._suspect_batch()
            log.error("the storage worker ended, restarting it", exit_code=code)
            self.restarts += 1
            await self._restart()

    async def _next(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next message; {} at the end. A worker that makes no progress is killed."""
        message = await self._message(process)
        limit_s = {Stage.DECODING: _NO_PROGRESS_S, Stage.WRITING: _NO_ANSWER_S}.get(message.get("stage", ""), math.inf)
        if message.get("idle_s", 0) > limit_s and not self._stopping:
            log.error("the storage worker makes no progress, killing it", stage=message["stage"], batch=self._batch)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return {}
        return message

    async def _message(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next message, or that of a worker that hangs when none arrives in _NO_PROGRESS_S.

        Waits several times: when this event loop was busy for longer than a wait, the next wait finds the message that
        arrived meanwhile. One turn can take that long when tens of thousands of connections send at once.
        """
        for _ in range(_WAITS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._stopping else _NO_PROGRESS_S / _WAITS):
                    return await self._line(process)
        return {"stage": Stage.DECODING, "idle_s": math.inf}

    def _suspect_batch(self) -> None:
        """Makes the next worker split the batch at which this one died."""
        if self._batch is not None:
            self._suspect = suspect_after(self._suspect, *self._batch, self._settings.batch_records)
            self._settings = replace(self._settings, suspect=self._suspect)
            log.warning("the batch will be read in pieces", **self._suspect._asdict())
            self._batch = None

    async def _restart(self) -> None:
        while True:
            await asyncio.sleep(_RESTART_AFTER_S)
            try:
                await self.start()
            except StorageError as exc:
                log.error("the storage worker does not start", error=str(exc))
            else:
                return

    @property
    def store_up(self) -> bool:
        """Whether the store accepts rows."""
        return self.alive and self._fault is None

    @property
    def not_ready_reason(self) -> str | None:
        """Why the service is not ready; None when it is. Short outages of a store once reached do not count."""
        if not self.alive:
            return "the storage worker is not running"
        if not self._reached:
            return self._fault
        return self._progress.not_ready_reason(self._stalled_s, time.monotonic(), self._fault)

    @property
    def idle_s(self) -> float:
        """Seconds since the worker last decoded, wrote, or was idle."""
        return self._idle_s + time.monotonic() - self._heard_at_s

    def _heard(self, message: dict[str, Any]) -> None:
        self._heard_at_s = time.monotonic()
        if "stage" in message:
            self._idle_s = 0.0 if message["stage"] == Stage.IDLE else message["idle_s"]
        elif "batch" in message:
            self._batch = tuple(message["batch"]) if message["batch"] else None
        else:
            self._heard_counts(message)

    def _heard_counts(self, message: dict[str, Any]) -> None:
        self.counts = message["counts"]
        self._fault = message["fault"]
        self._reached = self._reached or self._fault is None
        self._progress.heard(self.counts, time.monotonic())
        self.counted()

    async def stop(self, timeout_s: float) -> None:
        """Makes the worker drain the spool and exit; kills it after `timeout_s`. The spool keeps unwritten records."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        if not await finish(process, timeout_s):
            log.warning("the storage worker did not drain in time: the spool keeps the rest")

    @staticmethod
    async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next message, {} at the end."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        return dict(json.loads(line)) if line else {}


class _Progress:
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


class StorageReadings:
    """Readings for received = written + dropped + buffered, from three independent counts.

    `written_to_spool`: records that the network processes wrote since the start of this process. The store confirmed
    `written`, `dropped` is counted by reason, `buffered` in the spool; the worker reports them once a second.
    `network_restarts`: a killed network process may have written more records than it reported. A record that is
    replayed from quarantine counts as received once more.
    """

    def __init__(
        self, written_to_spool: Callable[[], int], worker: StorageWorker, network_restarts: Callable[[], int]
    ) -> None:
        self._written_to_spool = written_to_spool
        self._worker = worker
        self._network_restarts = network_restarts
        self._restarts = network_restarts()
        self._difference = CountDifference()
        if not worker.counts["is_counted"]:
            self._difference.resynchronize()
        worker.counted = self._sample

    def __call__(self) -> dict[SelfMetric, Values]:
        worker, counts = self._worker, self._worker.counts
        oldest_ms = counts["oldest_record_ms"]
        return {
            catalogue.RECORDS_RECEIVED: max(self._received(), accounted(counts)) + counts["replayed"],
            catalogue.RECORDS: {state: counts[state] for state in ("written", "dropped", "buffered")},
            catalogue.RECORDS_DIFFERENCE: self._difference.value,
            catalogue.DROPPED: counts["drop_reasons"],
            catalogue.SPOOL_BYTES: counts["buffered_bytes"],
            catalogue.SPOOL_READ_BYTES: counts["position_bytes"],
            catalogue.SPOOL_OLDEST: max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0,
            catalogue.SPOOL_TORN: counts["torn"],
            catalogue.HOURS_TO_ROLL_UP: counts["hours_to_roll_up"],
            catalogue.WORKER_RESTARTS: worker.restarts,
            catalogue.WORKER_UP: worker.alive,
            catalogue.WORKER_IDLE: worker.idle_s,
            catalogue.STORE_UP: worker.store_up,
            catalogue.FORWARD_SEGMENTS_SKIPPED: counts["segments_not_forwarded"],
        }

    def _received(self) -> int:
        return self._worker.received_before + self._written_to_spool()

    def _sample(self) -> None:
        if not self._worker.counts["is_counted"] or self._restarts != self._network_restarts():
            self._restarts = self._network_restarts()
            self._difference.resynchronize()
            return
        self._difference.sample(time.monotonic(), self._received(), accounted(self._worker.counts))
