"""`headroom serve`: builds all parts, runs them, and stops them in reverse order."""

import asyncio
import fcntl
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import uvloop
from starlette.types import ASGIApp

from exporters import self_metrics as catalogue
from exporters.spool.records import USAGE_WRITER
from exporters.spool.writer import PushSpool
from headroom.config.settings import Address, ConfigError, ServeConfig
from headroom.errors import ServeError
from headroom.logs import configure_logging, set_level
from headroom.server.addresses import address_faults, listening
from headroom.server.cluster.cluster_metadata import ClusterStart
from headroom.server.health import Health
from headroom.server.http import HttpServer, Replaceable, starting_app
from headroom.server.listeners.kafka_listeners import NetworkService, open_gateway, open_sink
from headroom.server.metrics import Readings, Snapshot, summed
from headroom.server.pages import guarded, http_app
from headroom.server.periodic import run_periodic_tasks
from headroom.server.process_limits import allow_open_files, forbid_core_dumps, tune_for_connections
from headroom.server.processes.assembly import open_push_spool, open_spool, push_sync_tasks, sync_task
from headroom.server.processes.forward_process import open_forwarding
from headroom.server.processes.levels_process import LevelsWorker, open_levels
from headroom.server.processes.messages import network_lock
from headroom.server.reload import Reload
from headroom.server.startup_check import checked
from headroom.server.storage import Storage, StorageReadings, open_storage
from headroom.server.store_readings import StoreReadings

_PREDECESSORS_S = 10.0


def run(load: Callable[[], ServeConfig]) -> int:
    """Serves until SIGTERM or SIGINT; returns 0. Raises ConfigError before anything is started, ServeError later.
    SIGHUP reads the settings again, by `load`."""
    config = checked(load)
    configure_logging()
    set_level(config.log_level)
    os.umask(0o077)  # files hold passwords and clients' data; children inherit it
    allow_open_files()
    tune_for_connections()
    if not config.core_dumps:
        forbid_core_dumps()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, load))


async def _serve(config: ServeConfig, load: Callable[[], ServeConfig]) -> int:
    stop = _stopped_by_signals()
    async with AsyncExitStack() as stack:
        await _lock(config.data, stack)
        if faults := address_faults(config):
            raise ConfigError(faults)
        forwarding = open_forwarding(config, stack)
        storage = await open_storage(config, stack)
        levels = open_levels(config, storage.clickhouse.nodes, stack)
        of_forwarding = [forwarding.child.watch()] if forwarding else []
        children = asyncio.gather(storage.watch(), levels.child.watch(), *of_forwarding)
        start = ClusterStart(config, stack) if config.upstream or config.observe else None
        web = Replaceable(guarded(config, starting_app(lambda: start.reason if start else "starting")))
        http = await _open_http(config, web, stack)
        # Two writers, so that a failed flush of usage does not fail pushes.
        pushes, quotas = open_push_spool(config, "pushes", stack), open_spool(config, USAGE_WRITER, stack)
        if start is None:
            service = await open_sink(config, pushes, stack)
        elif cluster := await start.answered(stop, children):
            service = await open_gateway(config, start.admin, cluster, pushes, quotas, storage.clickhouse, stack)
        else:
            return 0
        receivers, receiver_readings = await _open_receivers(config, service, pushes, stack)
        network, store_contents = service.network, _store_contents(config, storage, levels)
        counts = summed(
            service.readings,
            network.readings,
            StorageReadings((pushes, quotas), network, storage.worker),
            forwarding.readings if forwarding else dict,
        )

        def not_ready_reason() -> str | None:
            return storage.worker.not_ready_reason or network.not_ready_reason

        health = Health(config.data / "spool", config.store.late_ms, not_ready_reason, counts, stop.is_set)
        task_faults: Counter[str] = Counter()
        snapshot = partial(
            Snapshot,
            lambda: {catalogue.TASK_FAULTS: task_faults},
            counts,
            health.readings,
            storage.server_readings,
            store_contents.readings,
            receiver_readings,
        )
        reload = Reload(config, load, (levels.follow, service.follow))
        pages = http_app(config, storage.clickhouse, service, snapshot, health, lambda: reload.owners)
        web.app = guarded(config, pages)
        _reload_on_hangup(reload)
        kafka = f"kafka={service.address} " if service.address else ""
        print(f"ready {kafka}http={http} sql={storage.address}{receivers}", flush=True)  # noqa: T201 - promised
        own_tasks = [
            *push_sync_tasks(pushes, config),
            sync_task(quotas, config),
            *store_contents.tasks(),
            health.task(),
        ]
        watched = asyncio.gather(children, network.watch())
        await run_periodic_tasks([*service.periodic_tasks, *own_tasks], stop, watched, task_faults)
    return 0


def _stopped_by_signals() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # while it starts, there is nothing to reload
    return stop


def _reload_on_hangup(reload: Reload) -> None:
    """One reload at a time; a signal meanwhile is part of the next one."""
    loop = asyncio.get_running_loop()
    running: list[asyncio.Task[object]] = []

    def hangup() -> None:
        if not running or running[0].done():
            running[:] = [loop.create_task(reload.run())]

    loop.add_signal_handler(signal.SIGHUP, hangup)


async def _lock(data: Path, stack: AsyncExitStack) -> None:
    """One Headroom at a time uses the data directory. Waits for the network processes of a killed one: they hold its
    ports until they notice and exit."""
    try:
        data.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing is served yet
        file = stack.enter_context((data / "lock").open("a"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)  # for `headroom config reload`
    except BlockingIOError as exc:
        raise ServeError(f"another headroom uses {data}") from exc
    except OSError as exc:
        raise ServeError(f"cannot use {data}: {exc.strerror}") from exc
    deadline_s = time.monotonic() + _PREDECESSORS_S
    with network_lock(data) as predecessors:
        while True:
            try:
                return fcntl.flock(predecessors, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                if time.monotonic() > deadline_s:
                    raise ServeError(f"network processes of an earlier headroom still use {data}") from exc
            await asyncio.sleep(0.05)


async def _open_receivers(
    config: ServeConfig, network_service: NetworkService, pushes: PushSpool, stack: AsyncExitStack
) -> tuple[str, Readings]:
    """Opens the gRPC and OTLP receivers; returns their part of the ready line and their readings. Raises ServeError."""
    if config.grpc.listen is None and config.otlp.grpc is None and config.otlp.http is None:
        return "", dict
    from headroom.server.listeners.receivers import open_receivers  # imports gRPC, which takes 20 MB

    opened, readings = await open_receivers(config, network_service.gateway, pushes, stack)
    return "".join(f" {name}={address}" for name, address in opened.items()), readings


async def _open_http(config: ServeConfig, app: ASGIApp, stack: AsyncExitStack) -> Address:
    """Opens the HTTP address, which `stack` closes, and returns it. Raises ServeError."""
    server = HttpServer(app, config.http.host, config.http.port, grace_s=config.gateway.drain_ms / 1000)
    address = await listening(server.start(), config.http)
    stack.push_async_callback(server.stop)
    return address


def _store_contents(config: ServeConfig, storage: Storage, levels: LevelsWorker) -> StoreReadings:
    return StoreReadings(
        storage.clickhouse,
        config.spool.max_bytes,
        source=config.usage_source,
        max_client_series=config.quotas.metrics.max_series if config.quotas.metrics.enabled else 0,
        newest_s=lambda: levels.newest_s,
    )
