"""Processes to kill: network processes and storage worker of `headroom serve`, and a ClickHouse server."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from exporters.clickhouse.connection import WRITER
from exporters.clickhouse.managed.configuration import ServerSettings
from headroom.demo.processes import LOOPBACK, complaint, first_line, free_ports, start
from tests.kit.clickhouse import LaunchedServer
from tests.kit.clickhouse_cluster import NAME, RunningCluster
from tests.kit.serving import PATIENCE_S, Served, config_file

# A spool that fills within seconds, many batches and rollups.
SMALL_SPOOL_BYTES = 8 << 20
PROCESSES = 2  # processes that accept clients: the parent and its child
_STORE = {"batch_ms": 200, "rollup_ms": 500, "quarantine_records": 100_000, "quarantine_bytes": 1 << 30}


class Server:
    """A ClickHouse server at a fixed address, with a user and password for Headroom."""

    def __init__(self, directory: Path) -> None:
        [self.port] = free_ports(1)
        self.url = f"http://{WRITER}@{LOOPBACK}:{self.port}/headroom"
        self._settings = ServerSettings((directory / "server").resolve(), http_port=self.port)
        self.password_file = self._settings.password_file
        self._server = LaunchedServer(self._settings)

    async def start(self) -> None:
        """Returns when it accepts requests. Call it in the main thread: the server dies with the thread that started
        it."""
        self._server.launch()
        await asyncio.to_thread(self._server.wait_ready)

    @property
    def pid(self) -> int:
        assert self._server.process is not None
        return self._server.process.pid

    async def start_if_dead(self) -> None:
        assert self._server.process is not None
        if self._server.process.poll() is not None:
            await self.start()

    def kill(self) -> None:
        """kill -9; does nothing if it is not running."""
        if self._server.process is not None:
            self._server.process.kill()
            self._server.process.wait()


class Headroom(Served):
    """The addresses stay the same across restarts. Call `start` in the main thread."""

    def __init__(
        self,
        upstream: str,
        directory: Path,
        server: Server | RunningCluster | None,
        *,
        spool_bytes: int = SMALL_SPOOL_BYTES,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment`: variables that its processes have besides those of the test."""
        self.kafka_port, self.http_port, self.sql_port = free_ports(3)
        arguments = ["--upstream", upstream, "--cluster", "chaos", "--processes", str(PROCESSES)]
        directory.mkdir(parents=True, exist_ok=True)
        spool = {"segment_bytes": spool_bytes // 128, "max_bytes": spool_bytes}  # small, so that they are overwritten
        password: dict[str, Any] = {"clickhouse_password_file": str(server.password_file)} if server else {}
        cluster = {"cluster": {"name": NAME}} if isinstance(server, RunningCluster) else {}
        arguments += config_file(directory, spool=spool, store={**_STORE, **cluster}, **password)
        for receiver, port in (("listen", self.kafka_port), ("http", self.http_port), ("sql", self.sql_port)):
            arguments += [f"--{receiver}", f"{LOOPBACK}:{port}"]
        if server:
            arguments += ["--clickhouse", server.url]
        super().__init__(directory, *arguments, core_dumps=False, environment=environment)
        self.http = f"{LOOPBACK}:{self.http_port}"
        self._is_ready = self._lost_worker = False

    def begin(self) -> None:
        """Starts the process, which takes some seconds to become ready."""
        with self.log.open("ab") as log:
            self.process = start(self.argv, stderr=log, stdout=subprocess.PIPE)
        self._is_ready = self._lost_worker = False

    async def opened(self) -> None:
        """Waits until its listeners are open. Raises RuntimeError when it exits although its worker was not killed."""
        while not self._is_ready:
            line = await asyncio.to_thread(first_line, self.process, PATIENCE_S)
            self._is_ready = line.startswith("ready ")
            if not self._is_ready:
                if not self._lost_worker:
                    raise RuntimeError(f"headroom serve did not start: {complaint(self.log)}")
                self.kill_network()
                self.begin()

    def kill_network(self) -> None:
        """Kills the parent only; the other processes must detect that."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def child_pid(self, module: str) -> int | None:
        """Pid of the child that runs this module, if there is one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return next((child.pid for child in self.children(module)), None)
        return None

    def signal_child(self, module: str, number: signal.Signals) -> bool:
        """Returns whether there was such a child. Its parent restarts it when it ends."""
        pid = self.child_pid(module)
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def signal_worker(self, number: signal.Signals) -> bool:
        """Returns whether there was a worker to signal. Restarts Headroom if it gave up because its worker died at
        start-up."""
        if self._lost_worker and self.process.poll() is not None:
            self.begin()
        was_there = self.signal_child("headroom.server.processes.storage_process", number)
        if was_there:
            self._lost_worker = number == signal.SIGKILL
        return was_there

    def is_whole(self) -> bool:
        """Whether all network processes accept clients."""
        return self.metrics()["headroom_network_processes"] == PROCESSES


def signal_process(pid: int, number: signal.Signals) -> bool:
    os.kill(pid, number)
    return True
