"""loadgen.c from Python: client instances at their real interval, in a process that is not the bottleneck."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.bench.kit.child import Child, compiled
from tests.bench.kit.fleet import ZSTD, fleet

SOURCE = Path(__file__).with_name("loadgen.c")
TURNS = 64  # payloads sent in a cycle, each with its own timestamps
MAX_CONNECTIONS = 15_000


class Measured(NamedTuple):
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
        self._command = [compiled(SOURCE), *map(str, numbers), *map(str, files)]

    def __enter__(self) -> Self:
        self._child = Child(self._command)
        assert self._child.line() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()
        self._directory.cleanup()

    def measure(self, seconds: float) -> Measured:
        """Raises RuntimeError when the generator has ended because a connection was closed."""
        return Measured(**json.loads(self._child.ask(str(seconds))))


def real_payloads(vector: str, points: int = 0, first_turn: int = 0) -> list[bytes]:
    """TURNS payloads of a real client, each with its own timestamps and values. `points`: as in `fleet`."""
    [client] = fleet(vector, 1, points)
    return [client.payload(first_turn + turn) for turn in range(TURNS)]


def random_payloads(nbytes: int) -> list[bytes]:
    """TURNS payloads of `nbytes` for receivers that do not decompress."""
    return [os.urandom(nbytes) for _ in range(TURNS)]
