"""`headroom serve` as an operator starts it, without a cluster, in its own directory; measures its cost."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from urllib.parse import quote
from urllib.request import urlopen

import psutil

from headroom.demo.processes import LOOPBACK, complaint, first_line, start, stop

START_TIMEOUT_S = 60.0
PATIENCE_S = 120.0
COMPILED = Path("build/compiled")
ASKED_EVERY_S = 0.5  # a query takes 4 ms of ClickHouse, which would count as CPU of the measured work
ANSWER_S = 120.0  # a network process with a million instances is busy
_CPUCLOCK_SCHED = 2
# All of a bench's load has one address, which by default may send 2,000 pushes a second.
_BUDGETS = {"payer_requests": 1_000_000, "payer_instances": 1_000_000, "payer_bytes": 1 << 40}
USUAL_OPEN_FILES = 1024  # the usual soft limit of a service

_READY = re.compile(r"ready kafka=\S+:(\d+) http=\S+:(\d+) sql=\S+:(\d+)")
_SAMPLE = re.compile(r'^(\w+)(?:\{\w+="(\w+)"\})? (\S+)$', re.MULTILINE)


class Serve:
    """A context manager; clients are subscribed to all metrics every `interval_ms`."""

    def __init__(
        self,
        interval_ms: int,
        environment: Mapping[str, str] | None = None,
        telemetry: Mapping[str, object] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """`environment`: additional variables. `telemetry` and `settings`: the rest of the configuration file."""
        self._environment = [f"{name}={value}" for name, value in (environment or {}).items()]
        self._settings = {**settings, "telemetry": {**_BUDGETS, **telemetry}}
        self._directory = tempfile.TemporaryDirectory(prefix="headroom-bench-")
        self.data = Path(self._directory.name) / "data"
        self._log = Path(self._directory.name) / "serve.log"
        self._subscriptions = Path(self._directory.name) / "subscriptions.yaml"
        self._subscriptions.write_text(f"all: {{metrics: '*', interval.ms: {interval_ms}}}\n")

    def __enter__(self) -> Serve:
        self._start()
        return self

    def restart(self) -> None:
        """Restarts it on the same data, on other ports."""
        stop(self._process)
        self._start()

    def _start(self) -> None:
        command = ["env", *self._environment, sys.executable, "-m", "headroom", "serve"]
        command += ["--data", str(self.data)]
        for receiver in ("listen", "http", "sql"):
            command += [f"--{receiver}", f"{LOOPBACK}:0"]
        config = Path(self._directory.name) / "headroom.yaml"
        config.write_text(json.dumps({"subscriptions": str(self._subscriptions), **self._settings}))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_OPEN_FILES, limits[1]))
        try:
            with self._log.open("ab") as log:
                self._process = start([*command, "--config", str(config)], stderr=log, stdout=subprocess.PIPE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        ready = _READY.match(first_line(self._process, START_TIMEOUT_S))
        if ready is None:
            raise RuntimeError(f"headroom serve did not start: {complaint(self._log)}")
        self.port, self._http_port, self._sql_port = (int(port) for port in ready.groups())
        self.network = psutil.Process(self._process.pid)
        [self.worker] = [
            child for child in self.network.children() if "headroom.server.processes.storage_process" in child.cmdline()
        ]
        [self.clickhouse] = [
            child for child in self.worker.children(recursive=True) + self.network.children() if _is_clickhouse(child)
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._process)
        self._directory.cleanup()

    def metrics(self) -> dict[str, float]:
        """`name` or `name:label`."""
        with urlopen(f"http://{LOOPBACK}:{self._http_port}/metrics", timeout=ANSWER_S) as answer:
            text = answer.read().decode()
        return {f"{name}:{label}" if label else name: float(value) for name, label, value in _SAMPLE.findall(text)}

    @property
    def url(self) -> str:
        """Of the managed ClickHouse."""
        return f"http://{LOOPBACK}:{self._sql_port}"

    def query(self, sql: str) -> list[str]:
        """The lines of the managed ClickHouse's answer (TSV)."""
        with urlopen(f"http://{LOOPBACK}:{self._sql_port}/?query={quote(sql)}", timeout=ANSWER_S) as answer:
            return list(answer.read().decode().splitlines())

    def written(self, patience_s: float = PATIENCE_S) -> None:
        """Returns once the storage worker has written all. Raises TimeoutError."""
        waited(self._is_at_rest, patience_s, ASKED_EVERY_S)

    def _is_at_rest(self) -> bool:
        found = self.metrics()
        settled = found["headroom_records:written"] + found["headroom_records:dropped"]
        return settled == found["headroom_records_received_total"] and not found["headroom_spool_bytes"]


def _is_clickhouse(process: psutil.Process) -> bool:
    return "exporters.clickhouse.managed.launcher" in process.cmdline()


def waited(condition: Callable[[], bool], patience_s: float = PATIENCE_S, every_s: float = 0.02) -> None:
    """Raises TimeoutError when it does not become true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s:.0f} s")
        time.sleep(every_s)


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads of the process so far, in ns where psutil counts 10 ms: its clock(3), as
    clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~process.pid << 3) | _CPUCLOCK_SCHED)


def builds() -> dict[str, dict[str, str]]:
    """Environment variables of each build, the compiled one last, if `make compiled` has made it."""
    path = os.pathsep.join([str(COMPILED.absolute()), str(Path.cwd())])
    found = {"interpreted": {"HEADROOM_PURE": "1"}}
    if COMPILED.exists():
        found["compiled"] = {"PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    return found


def open_files_allowed() -> int:
    """Raises our own limit as far as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
