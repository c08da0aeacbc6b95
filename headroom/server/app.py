"""`headroom serve`: builds all parts, runs them, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

import uvloop

from exporters import self_metrics as catalogue
from exporters.spool.writer import SpoolWriter
from headroom.config.settings import Address, ConfigError, ServeConfig
from headroom.errors import ServeError, listening
from headroom.logs import configure_logging
from headroom.server.addresses import address_faults
from headroom.server.forwarding import open_forwarding
from headroom.server.http import HttpServer
from headroom.server.listeners.gateway import open_gateway
from headroom.server.listeners.network import NetworkService
from headroom.server.listeners.sink import open_sink
from headroom.server.metrics import Readings, SelfMetrics, summed
from headroom.server.open_files import allow_open_files
from headroom.server.pages import http_app
from headroom.server.periodic import run_periodic_tasks
from headroom.server.process_memory import forbid_core_dumps, tune_for_connections
from headroom.server.processes.assembly import open_spool, push_sync_tasks, sync_task
from headroom.server.processes.messages import network_lock
from headroom.server.processes.network_supervisor import NetworkProcesses
from headroom.server.processes.storage_supervisor import StorageReadings, StorageWorker
from headroom.server.startup_check import startup_faults
from headroom.server.storage import Storage, open_storage
from headroom.server.store_readings import StoreReadings

_PREDECESSORS_S = 10.0


def run(config: ServeConfig) -> int:
    """Serves until SIGTERM or SIGINT; returns 0. Raises ConfigError before anything is started, ServeError later."""
    if faults := startup_faults(config):
        raise ConfigError(faults)
    configure_logging()
    allow_open_files()
    tune_for_connections()
    if not config.core_dumps:
        forbid_core_dumps()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: ServeConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.enter_context(_lock(config.data))
        await _wait_for_predecessors(config.data)
        if faults := address_faults(config):
            raise ConfigError(faults)
        forwarding = await open_forwarding(config, stack)
        storage = await open_storage(config, stack)
        # Two writers, so that a failed flush of usage does not fail pushes.
        pushes, quotas = (open_spool(config, name, stack) for name in ("pushes", "quotas"))
        if config.upstream or config.observe:
            network_service = await open_gateway(config, pushes, quotas, storage.nodes.current, stack)
        else:
            network_service = await open_sink(config, pushes, stack)

        grpc, grpc_readings = await _open_grpc(config, network_service, stack)
        otlp, otlp_readings = await _open_otlp(config, network_service, pushes, stack)
        store_contents = _store_contents(config, storage)
        network = network_service.network

        def spooled() -> int:
            return pushes.records + quotas.records + network.records

        readings = summed(network_service.readings, network.readings)
        task_faults: Counter[str] = Counter()
        self_metrics = SelfMetrics(
            lambda: {catalogue.TASK_FAULTS: task_faults},
            readings,
            StorageReadings(spooled, storage.worker, lambda: network.restarts),
            storage.server_readings,
            store_contents.readings,
            grpc_readings,
            otlp_readings,
            forwarding.readings if forwarding else dict,
        )
        pages = http_app(
            config,
            storage.nodes,
            network_service.gateway.receiver.rules,
            self_metrics,
            lambda: _not_ready(stop, storage.worker, network),
        )
        web = HttpServer(pages, config.http.host, config.http.port, grace_s=config.gateway.drain_ms / 1000)
        http = await listening(web.start(), config.http)
        stack.push_async_callback(web.stop)

        kafka = f"kafka={_text(network_service.address)} " if network_service.address else ""
        addresses = f"{kafka}http={_text(http)} sql={storage.address}{grpc}{otlp}"
        print(f"ready {addresses}", flush=True)  # noqa: T201 - the promised line
        periodic_tasks = [*push_sync_tasks(pushes, config), sync_task(quotas, config), *store_contents.tasks()]
        await run_periodic_tasks(
            [*network_service.periodic_tasks, *periodic_tasks],
            stop,
            asyncio.gather(storage.watch(), network.watch(), *([forwarding.watch()] if forwarding else [])),
            task_faults,
        )
    return 0


def _lock(data: Path) -> TextIO:
    """Locks the data directory: one Headroom at a time uses it."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = (data / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise ServeError(f"another headroom uses {data}") from exc
    except OSError as exc:
        raise ServeError(f"cannot use {data}: {exc.strerror}") from exc
    return file


async def _open_grpc(
    config: ServeConfig, network_service: NetworkService, stack: AsyncExitStack
) -> tuple[str, Readings]:
    """Opens the gRPC receiver; returns its part of the ready line and its readings. Raises ServeError."""
    if config.grpc.listen is None:
        return "", dict
    from headroom.server.listeners.grpc import open_grpc  # gRPC takes 20 MB, so it is imported only if configured

    address, readings = await open_grpc(config, config.grpc.listen, network_service.gateway, stack)
    return f" grpc={address}", readings


async def _open_otlp(
    config: ServeConfig, network_service: NetworkService, pushes: SpoolWriter, stack: AsyncExitStack
) -> tuple[str, Readings]:
    """Opens the OTLP receivers; returns their part of the ready line and their readings. Raises ServeError."""
    if config.otlp.grpc is None and config.otlp.http is None:
        return "", dict
    from headroom.server.listeners.otlp import open_otlp

    opened, readings = await open_otlp(config, network_service.gateway, pushes, stack)
    return "".join(f" {name}={address}" for name, address in opened.items()), readings


async def _wait_for_predecessors(data: Path) -> None:
    """Waits for the network processes of a killed Headroom: they hold its ports until they notice and exit."""
    deadline_s = time.monotonic() + _PREDECESSORS_S
    with network_lock(data) as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                if time.monotonic() > deadline_s:
                    raise ServeError(f"network processes of an earlier headroom still use {data}") from exc
            await asyncio.sleep(0.05)


def _store_contents(config: ServeConfig, storage: Storage) -> StoreReadings:
    return StoreReadings(
        storage.nodes,
        config.spool.max_bytes,
        settings=config.store.options.client_settings(),
        max_client_series=config.quotas.metrics.max_series if config.quotas.metrics.enabled else 0,
    )


def _not_ready(stop: asyncio.Event, worker: StorageWorker, network: NetworkProcesses) -> str | None:
    return "draining" if stop.is_set() else worker.not_ready_reason or network.not_ready_reason


def _text(address: tuple[str, int]) -> str:
    return str(Address(host=address[0], port=address[1]))
