"""A real OpenTelemetry Collector: OTLP receivers and a batch processor; what it receives is thrown away.

The first use builds it with `go build` from otelcol/ into .cache (about 200 CPU seconds). Needs Go.
`python -m tests.kit.collector` builds it and prints its path.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import psutil
import yaml

from headroom.demo.processes import LOOPBACK, complaint, free_ports

SOURCES = Path(__file__).with_name("otelcol")
CACHE = Path(".cache")
_BUILD_TIMEOUT_S = 1_800.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0


class Collector:
    """A context manager. `grpc` and `http` are HOST:PORT."""

    def __init__(self, directory: Path) -> None:
        self._program = built()
        directory.mkdir(parents=True, exist_ok=True)
        self.grpc, self.http = (f"{LOOPBACK}:{port}" for port in free_ports(2))
        self._log = directory / "collector.log"
        self._config = directory / "collector.yaml"
        self._config.write_text(yaml.safe_dump(self._settings()))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Collector:
        """Returns when it accepts connections. Raises RuntimeError when it ends before."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([self._program, "--config", str(self._config)], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (_accepts(self.grpc) and _accepts(self.http)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the collector did not start: {complaint(self._log)}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _settings(self) -> dict[str, object]:
        protocols = {"grpc": {"endpoint": self.grpc}, "http": {"endpoint": self.http}}
        pipeline = {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["nop"]}
        telemetry = {"metrics": {"level": "none"}, "logs": {"level": "warn"}}
        return {
            "receivers": {"otlp": {"protocols": protocols}},
            "processors": {"batch": {}},
            "exporters": {"nop": {}},
            "service": {"pipelines": {"metrics": pipeline}, "telemetry": telemetry},
        }


def built() -> Path:
    """Path of the program; builds it if these sources have not been built yet."""
    sources = b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    program = CACHE.absolute() / f"otelcol-{sha256(sources).hexdigest()[:12]}"
    if not program.exists():
        CACHE.mkdir(exist_ok=True)
        built_to = program.with_suffix(".new")
        command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(built_to), "."]
        subprocess.run(command, cwd=SOURCES, check=True, timeout=_BUILD_TIMEOUT_S)
        built_to.rename(program)
    return program


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    print(built())
