"""Acknowledged pushes per CPU-second of the network process, a probe of tests.bench.kit.against.

100 connections, one push in flight on each.

A reader finishes the spool's segments at once, as the storage worker does, so that they are overwritten. If a
hypervisor reclaims free memory within milliseconds, each fresh page costs about 10 us (measured: 6 us for 3 kB, 0.2 us
in a resident page), a cost that the bare loop, which stores nothing, does not have.
"""

import select
import socket
import sys
import tempfile
import time

from tests.bench.kit.child import Child
from tests.bench.kit.serve import cpu_s
from tests.kit import wire

CONNECTIONS = 100
SECONDS = 1.5
WARM_SECONDS = 2.5  # until there are segments to overwrite


class Clients:
    def __init__(self, port: int, payload: bytes) -> None:
        self._poll = select.epoll()
        self._by_descriptor: dict[int, tuple[socket.socket, bytes]] = {}
        for _ in range(CONNECTIONS):
            client, push = wire.pushing_client(port, 4, payload)
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
    receivers = [sys.executable, "-m", "tests.bench.kit.receivers"]
    with (
        tempfile.TemporaryDirectory(prefix="headroom-bench-") as directory,
        Child([*receivers, kind, directory]) as receiver,
        Child([*receivers, "reader", directory]),
    ):
        clients = Clients(int(receiver.line()), payload)
        clients.push(WARM_SECONDS)
        before = cpu_s(receiver.process)
        count = clients.push(SECONDS)
        return count / (cpu_s(receiver.process) - before)
