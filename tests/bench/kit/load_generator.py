"""loadgen.c from Python: client instances at their real interval, in a process that is not the bottleneck."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.bench.kit.fleet import ZSTD, fleet

SOURCE = Path(__file__).with_name("loadgen.c")
TURNS = 64  # payloads sent in a cycle, each with its own timestamps
MAX_CONNECTIONS = 15_000


class Measured(NamedTuple):
    """Results of the clients in a measured period."""

    seconds: float
    sent: int
    acknowledged: int
    refused: int
    gets: int
    in_flight: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    late_ms: int  # how late the generator itself was


class LoadGenerator:
    """A context manager. All instances are subscribed on entry and push until exit.

    `payloads`: compressed with zstd, pushed in turn.
    """

    def __init__(self, port: int, instances: int, connections: int, payloads: Sequence[bytes], ramp_ms: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="headroom-load-")
        files = []
        for n, payload in enumerate(payloads):
            files.append(Path(self._directory.name) / f"{n}.zst")
            files[-1].write_bytes(payload)
        self.payload_bytes = sum(map(len, payloads)) / len(payloads)
        numbers = [port, instances, min(connections, instances, MAX_CONNECTIONS), ramp_ms, ZSTD]
        self._command = [str(compiled()), *map(str, numbers), *map(str, files)]

    def __enter__(self) -> LoadGenerator:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        if self._line() != "ready":
            raise RuntimeError("the load generator did not get its subscriptions")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()

    def measure(self, seconds: float) -> Measured:
        """Raises RuntimeError when the generator has ended because a connection was closed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return Measured(**json.loads(self._line() or "{}"))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def real_payloads(vector: str, points: int = 0, first_turn: int = 0) -> list[bytes]:
    """TURNS payloads of a real client, each with its own timestamps and values. `points`: as in `fleet`."""
    [client] = fleet(vector, 1, points)
    return [client.payload(first_turn + turn) for turn in range(TURNS)]


def random_payloads(nbytes: int) -> list[bytes]:
    """TURNS payloads of `nbytes` for receivers that do not decompress."""
    return [os.urandom(nbytes) for _ in range(TURNS)]


def compiled() -> Path:
    """Path of the program; compiles it if this source has not been compiled yet."""
    target = Path("build") / f"loadgen-{sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", target, SOURCE], check=True, timeout=60)
    return target.absolute()
