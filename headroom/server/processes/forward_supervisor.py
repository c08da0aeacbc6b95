"""The parent's side of the forwarding process: starts it, reads its counts, restarts it when it dies, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import structlog

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from headroom.server.processes.child import finish
from headroom.server.processes.forward_process import ForwardSettings
from telemetry.forward.forwarder import ForwardCounts

log = structlog.get_logger(__name__)

_RESTART_AFTER_S = 5.0
_NOTHING: dict[str, Any] = {**ForwardCounts().as_note(), "failures": 0, "accepts": True, "lag_bytes": 0}


class ForwardProcess:
    """One process at a time. That it fails makes Headroom neither stop nor not ready: clients and store are served."""

    def __init__(self, settings: ForwardSettings) -> None:
        self.counts = _NOTHING  # as last reported; those of LostPush and LostPoint continue after a restart
        self.restarts = 0
        self._failures_before = 0  # of processes that ended
        self._alive = False
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def start(self) -> None:
        """Returns when the process is started; it reports within a second."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headroom.server.processes.forward_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        with contextlib.suppress(RuntimeError):  # uvloop raises it when the process has already ended: `watch` sees it
            process.stdin.write(self._settings.line())
        self._alive = True

    async def watch(self) -> None:
        """Reads the process's reports and restarts it when it dies. Runs until `stop`."""
        while self._process is not None:
            process = self._process
            assert process.stdout is not None
            while line := await process.stdout.readline():
                self.counts = json.loads(line)["counts"]
            self._alive = False
            code = await process.wait()
            if self._stopping:
                return
            log.error("the forwarding process ended, restarting it", exit_code=code)
            self._failures_before += self.counts["failures"]
            self.counts = {**self.counts, "failures": 0}
            self.restarts += 1
            await asyncio.sleep(_RESTART_AFTER_S)
            await self.start()

    async def stop(self, timeout_s: float) -> None:
        """Lets a request that is being sent end; kills the process after `timeout_s`."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        await finish(process, timeout_s)

    def readings(self) -> dict[SelfMetric, Values]:
        """For /metrics."""
        counts = self.counts
        return {
            catalogue.FORWARD_POINTS: counts["points"],
            catalogue.FORWARD_PUSHES: counts["pushes"],
            catalogue.FORWARD_LOST_PUSHES: counts["lost_pushes"],
            catalogue.FORWARD_LOST_POINTS: counts["lost_points"],
            catalogue.FORWARD_FAILURES: self._failures_before + counts["failures"],
            catalogue.FORWARD_LAG_BYTES: counts["lag_bytes"],
            catalogue.FORWARD_UP: self._alive and counts["accepts"],
            catalogue.FORWARD_RESTARTS: self.restarts,
        }
