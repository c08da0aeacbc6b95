"""`headroom serve`: builds everything by calling constructors, top to bottom; runs; takes it down in reverse order."""

from __future__ import annotations

import asyncio
import fcntl
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

import uvloop

from exporters.spool import SpoolWriter
from headroom.chores import Chore, run_chores
from headroom.config import Address, ServeConfig
from headroom.errors import ServeError, listening
from headroom.gateway_front import open_gateway
from headroom.logs import configure_logging
from headroom.metrics import metrics_registry, storage_readings
from headroom.sink_front import open_sink
from headroom.storage import StorageError, StorageWorker
from headroom.web import WebDoor, web_app
from headroom.worker import WorkerSettings

_WORKER_DRAIN_S = 30.0


def run(config: ServeConfig) -> int:
    """Serves until SIGTERM or SIGINT; 0. Raises ServeError."""
    configure_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: ServeConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.enter_context(_lock(config.data))
        worker, sql = await _open_storage(config, stack)
        # Two writers: a flush of usage that fails must not take pushes with it that wait for their own.
        pushes, quotas = (_open_spool(config, name, stack) for name in ("pushes", "quotas"))
        if config.upstream:
            front = await open_gateway(config, pushes, quotas, sql, stack)
        else:
            front = await open_sink(config, pushes, stack)

        registry = metrics_registry(front.readings, storage_readings((pushes, quotas), worker))
        web = WebDoor(web_app(registry, lambda: _not_ready(stop, worker)), config.http.host, config.http.port)
        http = await listening(web.start(), config.http)
        stack.push_async_callback(web.stop)

        print(f"ready kafka={_text(front.address)} http={_text(http)} sql={sql}", flush=True)  # noqa: T201 - a promise
        syncs = [_sync(spool, config) for spool in (pushes, quotas)]
        await run_chores([*front.chores, *syncs], stop, worker.watch())
    return 0


def _lock(data: Path) -> TextIO:
    """One Headroom per data directory."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise ServeError(f"another headroom uses {data}") from exc
    except OSError as exc:
        raise ServeError(f"cannot use {data}: {exc.strerror}") from exc
    return file


async def _open_storage(config: ServeConfig, stack: AsyncExitStack) -> tuple[StorageWorker, str]:
    worker = StorageWorker(
        WorkerSettings(
            spool=str(config.data / "spool"),
            embedded=str(config.data / "clickhouse"),
            clickhouse=config.clickhouse,
            clickhouse_password=config.clickhouse_password,
            sql_host=config.sql.host,
            sql_port=config.sql.port,
            max_decompressed_bytes=config.telemetry.max_decompressed_bytes,
            batch_ms=config.store.batch_ms,
            batch_records=config.store.batch_records,
            batch_bytes=config.store.batch_bytes,
            rollup_ms=config.store.rollup_ms,
            quarantine=str(config.data / "quarantine"),
            quarantine_records=config.store.quarantine_records,
            quarantine_bytes=config.store.quarantine_bytes,
        )
    )
    try:
        sql = await worker.start()
    except StorageError as exc:
        raise ServeError(str(exc)) from exc
    stack.push_async_callback(worker.stop, _WORKER_DRAIN_S)
    if not config.clickhouse:
        worker.pin(int(sql.rpartition(":")[2]))
    return worker, sql


def _open_spool(config: ServeConfig, name: str, stack: AsyncExitStack) -> SpoolWriter:
    try:
        spool = SpoolWriter(
            config.data / "spool",
            name,
            segment_bytes=config.spool.segment_bytes,
            max_bytes=config.spool.max_bytes,
        )
    except OSError as exc:
        raise ServeError(f"cannot open the spool in {config.data}: {exc.strerror}") from exc
    stack.callback(spool.close)
    return spool


def _sync(spool: SpoolWriter, config: ServeConfig) -> Chore:
    return Chore("sync", config.spool.sync_ms, lambda: asyncio.to_thread(spool.sync))


def _not_ready(stop: asyncio.Event, worker: StorageWorker) -> str | None:
    if stop.is_set():
        return "draining"
    return worker.lacks


def _text(address: tuple[str, int]) -> str:
    return str(Address(host=address[0], port=address[1]))
