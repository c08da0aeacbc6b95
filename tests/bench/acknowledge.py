"""Acknowledged pushes per CPU-second of the network process: rules and spool against a bare loop in the same run.

100 connections, one push in flight on each. python -m tests.bench.acknowledge

A reader finishes the spool's segments at once, as the storage worker does, so that they are overwritten. If a
hypervisor reclaims free memory within milliseconds, each fresh page costs about 10 us (measured: 6 us for 3 kB, 0.2 us
in a resident page), a cost that the bare loop, which stores nothing, does not have.
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

import psutil

from tests.bench.figure import tell
from tests.kit import wire

CONNECTIONS = 100
SECONDS = 1.5
WARM_SECONDS = 2.5  # until there are segments to overwrite
RUNS = 3
SIZES = {"500B": 500, "3kB": 3_000}


class Receiver:
    """One of tests.bench.kit.receivers in a separate process."""

    def __init__(self, kind: str, directory: str) -> None:
        command = [sys.executable, "-m", "tests.bench.kit.receivers", kind, directory]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Clients:
    """Subscribed connections, each with the push that it repeats."""

    def __init__(self, port: int, payload: bytes) -> None:
        self._poll = select.epoll()
        self._by_descriptor: dict[int, tuple[socket.socket, bytes]] = {}
        for _ in range(CONNECTIONS):
            client = wire.connect(port)
            client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0"))
            push = wire.push(*wire.subscribed(wire.read_frame(client)), 4, payload)
            self._by_descriptor[client.fileno()] = (client, push)
            self._poll.register(client.fileno(), select.EPOLLIN)

    def push(self, seconds: float) -> int:
        """Sends pushes as fast as they are answered and returns how many. Any error code is a bug in the bench."""
        for client, push in self._by_descriptor.values():
            client.sendall(push)
        count, end = 0, time.perf_counter() + seconds
        waiting = CONNECTIONS
        while waiting:
            again = time.perf_counter() < end
            for descriptor, _ in self._poll.poll(10):
                client, push = self._by_descriptor[descriptor]
                answer = client.recv(4096)
                assert wire.error_code(answer) == 0, answer
                count += 1
                if again:
                    client.sendall(push)
                else:
                    waiting -= 1
        return count


def measured(kind: str, payload: bytes) -> float:
    """Pushes per CPU-second."""
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as directory:
        receiver, reader = Receiver(kind, directory), Receiver("reader", directory)
        try:
            clients = Clients(receiver.port, payload)
            clients.push(WARM_SECONDS)
            before = receiver.cpu_s()
            count = clients.push(SECONDS)
            return count / (receiver.cpu_s() - before)
        finally:
            receiver.stop()
            reader.stop()


def main() -> None:
    for name, size in SIZES.items():
        payload = os.urandom(size)
        ours, bare = [], []
        for _ in range(RUNS):
            bare.append(measured("bare", payload))
            ours.append(measured("headroom", payload))
        rate, baseline = statistics.median(ours), statistics.median(bare)
        tell(f"push_acknowledge_{name}", rate, "pushes/cpu_s", rate / baseline, "bare_uvloop_loop", digits=0)


if __name__ == "__main__":
    main()
