"""Runs `headroom serve` in a child process, as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from headroom.demo.processes import LOOPBACK, DemoError, Service, complaint, first_line, start, stop

CLUSTER = "demo"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0  # it flushes before it ends

# kafka_client_* on /metrics; the topics of each frame, since there are few
_SETTINGS = "quotas: {metrics: {enabled: true}, topics: {sample: 1}}\n"

_READY = re.compile(r"ready kafka=(\S+) http=(\S+) sql=(\S+)")


class Serving(Service):
    """A context manager; `kafka`, `http` and `sql` are HOST:PORT of its endpoints."""

    def __init__(self, upstream: str, directory: Path, *, http_port: int = 0) -> None:
        self.log = directory / "serve.log"
        self._settings = directory / "serve.yaml"
        self.kafka = self.http = self.sql = ""
        self._upstream = upstream
        self._http_port = http_port
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when all endpoints are open. Raises DemoError with its last output when they do not open."""
        free = f"{LOOPBACK}:0"
        endpoints = ["--listen", free, "--sql", free, "--http", f"{LOOPBACK}:{self._http_port}"]
        self._settings.write_text(_SETTINGS)
        where = ["--upstream", self._upstream, "--cluster", CLUSTER, "--data", str(self._data)]
        where += ["--config", str(self._settings)]
        with self.log.open("ab") as log:
            argv = [sys.executable, "-m", "headroom", "serve", *endpoints, *where]
            self._process = start(argv, stderr=log, stdout=subprocess.PIPE)
        ready = _READY.fullmatch(first_line(self._process, START_TIMEOUT_S))
        if ready is None:
            raise DemoError(f"headroom serve did not start: {complaint(self.log)}")
        self.kafka, self.http, self.sql = ready.groups()

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise DemoError(f"headroom serve ended with {self._process.returncode}: {complaint(self.log)}")

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, STOP_TIMEOUT_S)
            self._process = None
