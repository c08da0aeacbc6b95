"""Supervises the managed ClickHouse server: started first, restarted when it dies, stopped last."""

from __future__ import annotations

import asyncio

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.managed.server import ManagedServer, ServerError
from exporters.self_metrics import SelfMetric, Values

log = structlog.get_logger(__name__)

_RESTART_AFTER_S, _RESTART_AFTER_MAX_S = 0.5, 10.0


class ClickHouseSupervisor:
    """Runs on the main thread: the server dies with the thread that started it (prctl(2))."""

    def __init__(self, server: ManagedServer) -> None:
        self.restarts = 0
        self._server = server
        self._stopping = False

    async def start(self) -> None:
        """Returns when the server answers. Raises ServerError."""
        if self._server.ignores_failed_writes:
            log.warning(
                "the ClickHouse of chdb runs without its write guard: a full disk can lose rows",
                see="docs/install.md, From a wheel",
            )
        self._server.launch()
        await asyncio.to_thread(self._server.wait_ready)
        log.info("the ClickHouse server answers", http=self._server.http_port, native=self._server.native_port)

    async def watch(self) -> None:
        """Starts the server again when it ends. Runs until `stop`."""
        pause_s = _RESTART_AFTER_S
        while True:
            assert self._server.process is not None
            status = await asyncio.to_thread(self._server.process.wait)
            if self._stopping:
                return
            error = await asyncio.to_thread(self._server.last_error)
            log.error("the ClickHouse server ended, restarting it", exit_status=status, error=error)
            self.restarts += 1
            await asyncio.sleep(pause_s)
            try:
                await self.start()
                pause_s = _RESTART_AFTER_S
            except ServerError as exc:
                log.error("the ClickHouse server does not start", error=str(exc))
                pause_s = min(2 * pause_s, _RESTART_AFTER_MAX_S)

    def readings(self) -> dict[SelfMetric, Values]:
        """Readings for /metrics."""
        return {catalogue.CLICKHOUSE_RESTARTS: self.restarts}

    async def stop(self) -> None:
        """Stops the server; what it confirmed is on disk."""
        self._stopping = True
        await asyncio.to_thread(self._server.stop)
