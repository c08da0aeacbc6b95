"""The storage side of `headroom serve`: the managed ClickHouse server, if any, and the storage worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer, ServerError
from exporters.self_metrics import SelfMetric, Values
from headroom.config.settings import ConfigError, ServeConfig
from headroom.config.types import secret_of
from headroom.errors import ServeError
from headroom.server.addresses import address_fault
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues, passed_environment
from headroom.server.processes.storage_process import StorageWorker, WorkerSettings

log = structlog.get_logger(__name__)

_WORKER_DRAIN_S = 30.0
_SERVER_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Storage:
    """The running storage side. `address`: the SQL address in the ready line."""

    clickhouse: ClickHouse  # as the writer
    address: str
    worker: StorageWorker
    server: ChildProcess | None  # the managed ClickHouse

    def server_readings(self) -> dict[SelfMetric, Values]:
        """Readings of the managed server, if any."""
        return {catalogue.CLICKHOUSE_RESTARTS: self.server.restarts} if self.server else {}

    async def watch(self) -> None:
        """Restarts both when they die."""
        await asyncio.gather(self.worker.child.watch(), *([self.server.watch()] if self.server else []))


async def open_storage(config: ServeConfig, stack: AsyncExitStack) -> Storage:
    """`stack` closes both: the worker drains the spool before the server stops.

    Raises ServeError, and ConfigError when the SQL address is in use.
    """
    nodes, server = config.clickhouse_endpoints, None
    if nodes:
        address = ",".join(node.url for node in nodes)
    else:
        managed, server = await _open_server(config, stack)
        nodes, address = (managed,), managed.netloc
    mirror_bytes = config.forward.max_lag_bytes if config.forward.endpoint else 0
    worker = StorageWorker(
        WorkerSettings(
            data=config.data, nodes=nodes, store=config.store, telemetry=config.telemetry, mirror_bytes=mirror_bytes
        )
    )
    await worker.child.start()

    async def drain() -> None:
        if not await worker.child.stop(_WORKER_DRAIN_S):
            log.warning("the storage worker did not drain in time: the spool keeps the rest")

    stack.push_async_callback(drain)
    return Storage(ClickHouse(nodes, settings=config.store.options.client_settings()), address, worker, server)


async def _open_server(config: ServeConfig, stack: AsyncExitStack) -> tuple[Endpoint, ChildProcess]:
    """Started by the main thread: the server dies with the thread that started it (prctl(2))."""
    own = config.store.server
    settings = ServerSettings(
        directory=(config.data / "clickhouse").resolve(),
        host=config.sql.host,
        http_port=config.sql.port,
        native_port=own.native_port,
        host_names=own.host_names,
        memory_bytes=own.memory_bytes,
        reader_password=secret_of(own.reader_password, own.reader_password_file),
        program=own.program,
    )
    try:
        server = await asyncio.to_thread(ManagedServer, settings)
    except ServerError as exc:
        raise ServeError(str(exc)) from exc
    except OSError as exc:
        raise ConfigError([address_fault("--sql", config.sql, exc)]) from exc
    stack.callback(server.close)
    values = ChildValues(
        "the ClickHouse server",
        server.command,
        server.environment(passed_environment()),
        restart_after_s=0.5,
        restart_after_max_s=10.0,
        answers=server.answers,
        output=server.output,
        cause=server.last_error,
    )
    child = ChildProcess(values)
    stack.push_async_callback(child.stop, _SERVER_STOP_S)  # what it confirmed is on disk
    if server.ignores_failed_writes:
        log.warning(
            "the ClickHouse of chdb runs without its write guard: a full disk can lose rows",
            see="docs/install.md, From a wheel",
        )
    await child.start()
    log.info("the ClickHouse server answers", http=server.http_port, native=server.native_port)
    return server.writer, child
