"""`headroom serve` as an operator starts it, without a cluster, in its own directory; measures its cost."""

import os
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import quote
from urllib.request import urlopen

import psutil

from tests.kit.serving import Served, config_file, eventually, is_at_rest

PATIENCE_S = 120.0
COMPILED = Path("build/compiled")
ASKED_EVERY_S = 0.5  # a query takes 4 ms of ClickHouse, which would count as CPU of the measured work
ANSWER_S = 120.0  # a network process with a million instances is busy
_CPUCLOCK_SCHED = 2
# All of a bench's load has one address, which by default may send 2,000 pushes a second.
_BUDGETS = {"payer_requests": 1_000_000, "payer_instances": 1_000_000, "payer_bytes": 1 << 40}
USUAL_OPEN_FILES = 1024  # the usual soft limit of a service


class Serve(Served):
    """A context manager; clients are subscribed to all metrics every `interval_ms`."""

    def __init__(
        self,
        interval_ms: int,
        environment: Mapping[str, str] = MappingProxyType({}),
        telemetry: Mapping[str, object] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """`environment`: additional variables. `telemetry` and `settings`: the rest of the configuration file."""
        self._directory = tempfile.TemporaryDirectory(prefix="headroom-bench-")
        directory = Path(self._directory.name)
        config = config_file(directory, push_ms=interval_ms, telemetry={**_BUDGETS, **telemetry}, **settings)
        super().__init__(directory, *config, core_dumps=False, environment=environment)
        self.data = directory / "data"

    def __enter__(self) -> Self:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_OPEN_FILES, limits[1]))
        try:
            super().__enter__()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.port = self.address[1]
        self.network = psutil.Process(self.process.pid)
        [self.worker] = self.children("headroom.server.processes.storage_process")
        processes = self.worker.children(recursive=True) + self.network.children()
        launcher = "exporters.clickhouse.managed.launcher"
        [self.clickhouse] = [process for process in processes if launcher in process.cmdline()]
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._directory.cleanup()

    def restart(self) -> None:
        self.stop()
        self.__enter__()

    @property
    def url(self) -> str:
        return f"http://{self.sql}"

    def query(self, sql: str) -> list[str]:
        """The lines of the managed ClickHouse's answer (TSV)."""
        with urlopen(f"{self.url}/?query={quote(sql)}", timeout=ANSWER_S) as answer:
            return list(answer.read().decode().splitlines())

    def written(self, patience_s: float = PATIENCE_S) -> None:
        """Returns once the storage worker has written all. Raises AssertionError."""
        eventually(self.metrics, is_at_rest, patience_s, ASKED_EVERY_S)


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads of the process so far, in ns where psutil counts 10 ms: its clock(3), as
    clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~process.pid << 3) | _CPUCLOCK_SCHED)


def builds() -> dict[str, dict[str, str]]:
    """Environment variables of each build, the compiled one last, if `make compiled` has made it. Ends the process when
    a source is newer: figures would be those of earlier code."""
    path = os.pathsep.join([str(COMPILED.absolute()), str(Path.cwd())])
    found = {"interpreted": {"HEADROOM_PURE": "1"}}
    if COMPILED.exists():
        packages = [Path(copy.name) for copy in COMPILED.iterdir() if copy.is_dir()]
        newest_s = max(file.stat().st_mtime for package in packages for file in package.rglob("*.py"))
        if newest_s > COMPILED.stat().st_mtime:
            raise SystemExit("bench: build/compiled is older than the sources: make compiled")
        found["compiled"] = {"PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    return found


def open_files_allowed() -> int:
    """Raises our own limit as far as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
