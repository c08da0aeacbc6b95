"""10,000 open connections to one process of `headroom serve`: all subscribe, and all pushes are acknowledged.

Reports memory per connection (with session and client instance) and that of a bare loop; the time until simultaneous
pushes of all are acknowledged; p99 of the pushes of some other clients, with and without the 10,000.

python -m tests.bench.connections
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import psutil

from tests.bench.figure import tell
from tests.bench.kit.serve import Serve, cpu_s, open_files_allowed
from tests.kit import wire

CONNECTIONS = 10_000
SPARE_FILES = 200
PER_ADDRESS = 4_000  # source ports used per source address
INTERVAL_MS = 100
OTHERS = 40
ROUNDS = 25  # pushes of each of the other clients
PAYLOAD = os.urandom(500)
NO_COMPRESSION = 0


def subscribed(port: int, count: int, first: int = 0) -> list[tuple[socket.socket, bytes]]:
    """The connections with the push of each."""
    found = []
    for n in range(first, first + count):
        client = wire.connect(port, f"127.0.0.{2 + n // PER_ADDRESS}")
        client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0"))
        instance_id, subscription_id = wire.subscribed(wire.read_frame(client))
        found.append((client, wire.push(instance_id, subscription_id, NO_COMPRESSION, PAYLOAD)))
    return found


def acknowledged_s(clients: list[tuple[socket.socket, bytes]]) -> list[float]:
    """All push at once; returns the time of each answer since the first push."""
    poll, by_descriptor = select.epoll(), {client.fileno(): client for client, _ in clients}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    begun = time.perf_counter()
    for client, push in clients:
        client.send(push)
    answered: list[float] = []
    while len(answered) < len(clients):
        for descriptor, _ in poll.poll(30):
            assert wire.error_code(by_descriptor[descriptor].recv(4096)) == 0
            answered.append(time.perf_counter() - begun)
            poll.unregister(descriptor)
    return answered


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
    count = min(CONNECTIONS, open_files_allowed() - SPARE_FILES)
    with Serve(INTERVAL_MS) as serve:
        others = subscribed(serve.port, OTHERS)
        list(latencies_ms(others, ROUNDS // 4))
        alone_ms = _p99(latencies_ms(others, ROUNDS))
        before = serve.network.memory_info().rss
        clients = subscribed(serve.port, count, OTHERS)
        assert serve.metrics()["headroom_connections"] == count + OTHERS
        held = (serve.network.memory_info().rss - before) / count
        time.sleep(INTERVAL_MS / 1000)
        cpu_before = cpu_s(serve.network)
        answered = acknowledged_s(clients)
        cpu = cpu_s(serve.network) - cpu_before
        tell(f"push_all_at_once_{count}", max(answered), "s", max(answered) / cpu, "cpu_s_of_the_process", digits=2)
        beside_ms = _p99(latencies_ms(others, ROUNDS))
        tell(f"push_p99_beside_{count}", beside_ms, "ms", beside_ms / alone_ms, "without_them", digits=2)
        for client, _ in clients + others:
            client.close()
    tell(f"connection_{count}", held, "bytes", held / _bare_bytes(count), "bare_uvloop_loop", digits=0)


def _bare_bytes(count: int) -> float:
    """Memory per connection of a bare loop without rules, sessions and spool."""
    command = [sys.executable, "-m", "tests.bench.kit.receivers", "bare", tempfile.gettempdir()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            bare = psutil.Process(process.pid)
            before = bare.memory_info().rss
            clients = subscribed(port, count)
            held = bare.memory_info().rss - before
            for client, _ in clients:
                client.close()
        finally:
            process.kill()
    return held / count


def _p99(values: Iterator[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


if __name__ == "__main__":
    main()
