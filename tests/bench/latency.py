"""p99 of a push while the storage worker ingests at half of its peak rate, and on an idle service.

To find the peak, the worker is stopped while pushes of Java producers accumulate in the spool, then continued. Then
probes push one after the other, alternately at rest and while the load pushes at half of that rate through the same
receiver. The processes of `headroom serve`, load and probe are not pinned to cores.

python -m tests.bench.latency
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.figure import tell
from tests.bench.kit.serve import Serve, open_files_allowed
from tests.kit import wire

INTERVAL_MS = 100
LOADERS = 800
PILE_RATE, PILE_S = 3_000, 5.0
PROBES = 40
PAYLOAD = os.urandom(500)
NO_COMPRESSION = 0
PROBED_S = 2.0  # length of a turn; short, so that other activity on the machine affects both alike
TURNS = 6
LEAD_S = 1.5  # until the worker has started


class Load:
    """tests.bench.kit.load in a separate process. A context manager."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.bench.kit.load", str(port), str(LOADERS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._reported, self._tell = self._process.stdout, self._process.stdin

    def __enter__(self) -> Load:
        assert self._reported.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def begin(self, rate: float, seconds: float) -> None:
        self._tell.write(f"{rate} {seconds}\n")
        self._tell.flush()

    def end(self) -> int:
        """How many pushes were acknowledged."""
        acknowledged, refused, late_ms = map(int, self._reported.readline().split())
        if refused:
            print(f"{refused} pushes were refused, the latest was {late_ms} ms late", file=sys.stderr)
        return acknowledged


def peak(serve: Serve, load: Load) -> float:
    """Pushes per second that the storage worker writes from a full spool."""
    load.begin(PILE_RATE / 2, 1)  # after this every client has pushed once
    load.end()
    serve.written()
    serve.worker.send_signal(signal.SIGSTOP)
    try:
        load.begin(PILE_RATE, PILE_S)
        pushes = load.end()
    finally:
        serve.worker.send_signal(signal.SIGCONT)
    begun = time.perf_counter()
    serve.written()
    return pushes / (time.perf_counter() - begun)


def subscribed(port: int, count: int) -> list[tuple[socket.socket, bytes]]:
    """The connections with the push of each."""
    clients = []
    for _ in range(count):
        client = wire.connect(port)
        client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0"))
        instance_id, subscription_id = wire.subscribed(wire.read_frame(client))
        clients.append((client, wire.push(instance_id, subscription_id, NO_COMPRESSION, PAYLOAD)))
    return clients


def latencies_ms(clients: list[tuple[socket.socket, bytes]], rounds: int) -> Iterator[float]:
    """Sequential pushes, none before its interval has elapsed."""
    due_s = [time.perf_counter() + INTERVAL_MS / 1000] * len(clients)
    for n, (client, push) in [*enumerate(clients)] * rounds:
        time.sleep(max(0.0, due_s[n] - time.perf_counter()))
        begun = time.perf_counter()
        client.sendall(push)
        assert wire.error_code(wire.read_frame(client)) == 0
        answered = time.perf_counter()
        due_s[n] = answered + 1.1 * INTERVAL_MS / 1000
        yield (answered - begun) * 1000


def main() -> None:
    open_files_allowed()
    with Serve(INTERVAL_MS) as serve, Load(serve.port) as load:
        probes = subscribed(serve.port, PROBES)
        rate = peak(serve, load) / 2
        rounds = int(PROBED_S * 1000 / (1.2 * INTERVAL_MS))
        idle, busy = list[float](), list[float]()
        for _ in range(TURNS):
            idle += latencies_ms(probes, rounds)
            load.begin(rate, PROBED_S + LEAD_S)
            time.sleep(LEAD_S)
            busy += latencies_ms(probes, rounds)
            load.end()
            serve.written()
    p50, p99 = ([statistics.quantiles(found, n=100)[at] for found in (busy, idle)] for at in (49, 98))
    tell("push_p50_at_half_peak", p50[0], "ms", p50[0] / p50[1], "idle", digits=2)
    tell("push_p99_at_half_peak", p99[0], "ms", p99[0] / p99[1], "idle", digits=2)
    tell("ingested_at_half_peak", rate, "pushes/s", 0.5, "peak", digits=0)


if __name__ == "__main__":
    main()
