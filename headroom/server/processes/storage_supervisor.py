"""The parent's side of the storage worker: starts it, reads its counts, restarts it when it dies, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from exporters import self_metrics as catalogue
from exporters.model import DropReason
from exporters.self_metrics import SelfMetric, Values
from headroom.server.metrics import Readings
from headroom.server.processes.storage_process import WorkerSettings

log = structlog.get_logger(__name__)

_RESTART_AFTER_S = 1.0
_START_TIMEOUT_S = 60.0


class StorageError(Exception):
    """The store cannot be opened."""


class StorageWorker:
    """One worker process at a time."""

    def __init__(self, settings: WorkerSettings, stalled_ms: int = 60_000) -> None:
        """Not ready when nothing was written for `stalled_ms` while records wait, and as long after a refusal"""
        self.counts: dict[str, Any] = {}  # as told last; they go on where the worker before ended
        self.received_before = 0  # records that were in the spool before we started
        self.restarts = 0
        self.alive = False
        self._fault: str | None = None  # why the store takes nothing, as told last
        self._reached = False  # whether the store ever took anything
        self._stalled_s = stalled_ms / 1000
        self._progress = _Progress()
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def start(self) -> None:
        """Returns when it has had its first look at the store. Raises StorageError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headroom.server.processes.storage_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._process = process
        assert process.stdin is not None
        with contextlib.suppress(RuntimeError):  # uvloop's word for a process that has already ended: told below
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
        """Takes the worker's counts; starts it again when it dies. Runs until `stop`."""
        while True:
            process = self._process
            assert process is not None
            while line := await self._line(process):
                self._heard(line)
            self.alive = False
            code = await process.wait()
            if self._stopping:
                return
            log.error("the storage worker ended, starting it again", exit_code=code)
            self.restarts += 1
            await self._restart()

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
        """Whether the store takes what it is given."""
        return self.alive and self._fault is None

    @property
    def not_ready_reason(self) -> str | None:
        """Why we are not ready. A store that was there once may go and come for a while: the spool bridges that."""
        if not self.alive:
            return "the storage worker is not there"
        if not self._reached:
            return self._fault
        return self._progress.not_ready_reason(self._stalled_s, time.monotonic(), self._fault)

    def _heard(self, message: dict[str, Any]) -> None:
        self.counts = message["counts"]
        self._fault = message["fault"]
        self._reached = self._reached or self._fault is None
        self._progress.heard(self.counts, time.monotonic())

    async def stop(self, timeout_s: float) -> None:
        """Lets the worker drain the spool and end; kills it after `timeout_s`. The spool keeps what is not written."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            log.warning("the storage worker did not drain in time: the spool keeps the rest")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @staticmethod
    async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next message, {} at the end."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        return dict(json.loads(line)) if line else {}


class _Progress:
    """When the worker last wrote, or had nothing to write, and when the store last refused records for good."""

    def __init__(self) -> None:
        self._settled: int | None = None  # records written or dropped, as told last
        self._refused: int | None = None
        self._moved_at_s = self._refused_at_s = -math.inf
        self._waiting = False

    def heard(self, counts: dict[str, Any], now_s: float) -> None:
        settled, refused = counts["written"] + counts["dropped"], counts["drop_reasons"][DropReason.REFUSED.value]
        if settled != self._settled or not counts["buffered"]:
            self._settled, self._moved_at_s = settled, now_s
        self._waiting = counts["buffered"] > 0
        if self._refused is not None and refused > self._refused:
            self._refused_at_s = now_s
        self._refused = refused

    def not_ready_reason(self, stalled_s: float, now_s: float, fault: str | None) -> str | None:
        """Why the store cannot be called ready."""
        if now_s - self._refused_at_s < stalled_s:
            return "the store refuses records"
        if not self._waiting or now_s - self._moved_at_s < stalled_s:
            return None
        cause = f": {fault}" if fault else ""
        return f"nothing was written for {now_s - self._moved_at_s:.0f} s while the spool holds records{cause}"


def accounted(counts: dict[str, Any]) -> int:
    """Records that a worker knows of."""
    return int(counts["written"] + counts["dropped"] + counts["buffered"])


def storage_readings(written_to_spool: Callable[[], int], worker: StorageWorker) -> Readings:
    """received = written + dropped + buffered at every moment: what the worker did not tell of yet is buffered.

    `written_to_spool`: records, since we started, as far as it is known. A network process that was killed may have
    written more than it told; the worker finds that in the spool.
    """

    def readings() -> dict[SelfMetric, Values]:
        counts = worker.counts
        received = max(worker.received_before + written_to_spool(), accounted(counts))
        buffered = received - counts["written"] - counts["dropped"]
        return {
            catalogue.RECORDS_RECEIVED: received,
            catalogue.RECORDS: {"written": counts["written"], "dropped": counts["dropped"], "buffered": buffered},
            catalogue.DROPPED: counts["drop_reasons"],
            catalogue.SPOOL_BYTES: counts["buffered_bytes"],
            catalogue.SPOOL_TORN: counts["torn"],
            catalogue.HOURS_TO_ROLL_UP: counts["hours_to_roll_up"],
            catalogue.WORKER_RESTARTS: worker.restarts,
            catalogue.WORKER_UP: worker.alive,
            catalogue.STORE_UP: worker.store_up,
        }

    return readings
