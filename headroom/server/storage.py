"""The storage side of `headroom serve`: the managed ClickHouse server, if any, and the storage worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict, astuple, dataclass

from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.executable import NoServerError
from exporters.clickhouse.managed.server import ManagedServer, ServerError
from exporters.clickhouse.reader import Nodes
from exporters.self_metrics import SelfMetric, Values
from headroom.config.settings import ConfigError, ServeConfig
from headroom.errors import ServeError
from headroom.server.addresses import address_fault
from headroom.server.processes.clickhouse_supervisor import ClickHouseSupervisor
from headroom.server.processes.storage_process import WorkerSettings
from headroom.server.processes.storage_supervisor import StorageError, StorageWorker

_WORKER_DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Storage:
    """The running storage side. `address`: the SQL address in the ready line."""

    nodes: Nodes  # as the writer
    address: str
    worker: StorageWorker
    server: ClickHouseSupervisor | None

    def server_readings(self) -> dict[SelfMetric, Values]:
        """Readings of the managed server, if any."""
        return self.server.readings() if self.server else {}

    async def watch(self) -> None:
        """Restarts both when they die."""
        await asyncio.gather(self.worker.watch(), *([self.server.watch()] if self.server else []))


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
    worker = StorageWorker(_worker_settings(config, nodes), config.store.stalled_ms)
    try:
        await worker.start()
    except StorageError as exc:
        raise ServeError(str(exc)) from exc
    stack.push_async_callback(worker.stop, _WORKER_DRAIN_S)
    return Storage(Nodes(*nodes), address, worker, server)


async def _open_server(config: ServeConfig, stack: AsyncExitStack) -> tuple[Endpoint, ClickHouseSupervisor]:
    settings = ServerSettings(
        directory=(config.data / "clickhouse").resolve(),
        host=config.sql.host,
        http_port=config.sql.port,
        native_port=config.store.server.native_port,
        host_names=config.store.server.host_names,
        memory_bytes=config.store.server.memory_bytes,
        reader_password=config.store.server.password_of_readers,
        program=config.store.server.program,
    )
    try:
        server = await asyncio.to_thread(ManagedServer, settings)
        supervisor = ClickHouseSupervisor(server)
        stack.push_async_callback(supervisor.stop)
        await supervisor.start()
    except (NoServerError, ServerError) as exc:
        raise ServeError(str(exc)) from exc
    except OSError as exc:
        raise ConfigError([address_fault("--sql", config.sql, exc)]) from exc
    return Endpoint("http", server.host, server.http_port, WRITER, server.password), supervisor


def _worker_settings(config: ServeConfig, nodes: tuple[Endpoint, ...]) -> WorkerSettings:
    return WorkerSettings(
        spool=str(config.data / "spool"),
        mirror=str(config.data / "forward") if config.forward.endpoint else "",
        mirror_bytes=config.forward.max_lag_bytes,
        clickhouse=",".join(node.url for node in nodes),
        clickhouse_password=nodes[0].password,
        clickhouse_tls=astuple(nodes[0].tls),
        store=asdict(config.store.options),
        max_decompressed_bytes=config.telemetry.max_decompressed_bytes,
        max_client_points=config.telemetry.max_client_points,
        max_client_series=config.telemetry.max_client_series,
        batch_ms=config.store.batch_ms,
        batch_records=config.store.batch_records,
        batch_bytes=config.store.batch_bytes,
        rollup_ms=config.store.rollup_ms,
        quarantine=str(config.data / "quarantine"),
        quarantine_records=config.store.quarantine_records,
        quarantine_bytes=config.store.quarantine_bytes,
    )
