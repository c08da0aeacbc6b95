"""The storage side of `headroom serve`: the managed ClickHouse server, if any, the storage worker, and the counts of
records for /metrics.

received = written + dropped + buffered, from three independent counts. Different processes count at different moments.
A count of the worker is therefore compared with the received counts _WINDOW_S before and _WINDOW_S after it; only a
count outside this range is a difference.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from exporters import self_metrics as catalogue
from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer, ServerError
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.config.settings import ConfigError, ServeConfig
from headroom.config.types import secret_of
from headroom.errors import ServeError
from headroom.server.addresses import address_fault
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues, passed_environment
from headroom.server.processes.network_processes import NetworkProcesses
from headroom.server.processes.storage_process import StorageWorker, WorkerSettings, accounted

log = structlog.get_logger(__name__)

_WORKER_DRAIN_S = 30.0
_SERVER_STOP_S = 20.0
_WINDOW_S = 5.0  # on both sides of a count of the worker


@dataclass(frozen=True, slots=True)
class Storage:
    """The running storage side. `address`: the SQL address in the ready line."""

    clickhouse: ClickHouse  # as the writer
    address: str
    worker: StorageWorker
    server: ChildProcess | None  # the managed ClickHouse

    def server_readings(self) -> dict[SelfMetric, Values]:
        return {catalogue.CLICKHOUSE_RESTARTS: self.server.restarts} if self.server else {}

    async def watch(self) -> None:
        await asyncio.gather(self.worker.child.watch(), *([self.server.watch()] if self.server else []))


async def open_storage(config: ServeConfig, stack: AsyncExitStack) -> Storage:
    """`stack` closes both: the worker drains the spool before the server stops. Raises ServeError, and ConfigError when
    the SQL address is in use."""
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
        raise ConfigError([f"--sql: {address_fault(config.sql, exc)}"]) from exc
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


class StorageReadings:
    """`spools` are those of this process. The store confirmed `written`, `dropped` is counted by reason, `buffered` in
    the spool; the worker reports them once a second. A killed network process may have written more records than it
    reported. A record that is replayed from quarantine counts as received once more."""

    def __init__(
        self, spools: Sequence[PushSpool | SpoolWriter], network: NetworkProcesses, worker: StorageWorker
    ) -> None:
        self._spools = spools
        self._network = network
        self._worker = worker
        self._restarts = network.restarts
        self._difference = CountDifference()
        self._compared: dict[str, Any] = {}  # counts of the worker
        if not worker.counts["is_counted"]:
            self._difference.resynchronize()

    def __call__(self) -> dict[SelfMetric, Values]:
        """Also compares the counts, when the worker has reported new ones; it is called once a second (health.py)."""
        worker, counts = self._worker, self._worker.counts
        written = self._network.records + sum(spool.records for spool in self._spools)
        received = worker.received_before + written
        if counts is not self._compared:
            self._compared = counts
            if not counts["is_counted"] or self._restarts != self._network.restarts:
                self._restarts = self._network.restarts
                self._difference.resynchronize()
            else:
                self._difference.sample(time.monotonic(), received, accounted(counts))
        return {
            catalogue.RECORDS_RECEIVED: max(received, accounted(counts)) + counts["replayed"],
            catalogue.RECORDS: {state: counts[state] for state in ("written", "dropped", "buffered")},
            catalogue.RECORDS_DIFFERENCE: self._difference.value,
            catalogue.DROPPED: counts["drop_reasons"],
            catalogue.SPOOL_BYTES: counts["buffered_bytes"],
            catalogue.SPOOL_READ_BYTES: counts["position_bytes"],
            catalogue.SPOOL_TORN: counts["torn"],
            catalogue.REPLACED_TEXTS: counts["replaced_texts"],
            catalogue.HOURS_TO_ROLL_UP: counts["hours_to_roll_up"],
            catalogue.WORKER_RESTARTS: worker.child.restarts,
            catalogue.WORKER_UP: worker.child.alive,
            catalogue.WORKER_IDLE: worker.idle_s,
            catalogue.STORE_UP: worker.store_up,
            catalogue.FORWARD_SEGMENTS_SKIPPED: counts["segments_not_forwarded"],
        }


class _Sample(NamedTuple):
    at_s: float
    received: int
    accounted: int


class CountDifference:
    """`value` is 0 as long as received = written + dropped + buffered; above 0 records are missing. `resynchronize` is
    for records that may have been written without being counted, as by a killed network process."""

    def __init__(self) -> None:
        self.value = 0
        self._samples: deque[_Sample] = deque()
        self._offset = 0  # added to what was received
        self._slack = 0  # uncertainty of the offset
        self._is_synchronized = True

    def resynchronize(self) -> None:
        """Accepts the next comparison as correct, within the records received meanwhile."""
        self._is_synchronized = False
        self._samples.clear()

    def sample(self, at_s: float, received: int, accounted: int) -> None:
        """`at_s` is monotonic; `accounted` is written + dropped + buffered as the worker has just reported."""
        self._samples.append(_Sample(at_s, received, accounted))
        while len(self._samples) > 1 and self._samples[1].at_s <= at_s - 2 * _WINDOW_S:
            self._samples.popleft()
        oldest = self._samples[0]
        if oldest.at_s > at_s - 2 * _WINDOW_S:
            return
        middle = next(sample for sample in self._samples if sample.at_s >= at_s - _WINDOW_S)
        if not self._is_synchronized:
            self._is_synchronized = True
            self._offset, self._slack = middle.accounted - middle.received, received - oldest.received
        low, high = oldest.received + self._offset - self._slack, received + self._offset + self._slack
        self.value = max(low - middle.accounted, 0) or min(high - middle.accounted, 0)
