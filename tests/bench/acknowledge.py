"""Acknowledged pushes per CPU-second of the network process: rules and spool against a bare loop in the same run.

100 connections, one push in flight on each. python -m tests.bench.acknowledge
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import psutil

CONNECTIONS = 100
SECONDS = 1.5
RUNS = 3
SIZES = {"500B": 500, "3kB": 3_000}

_ANSWER_BYTES = 16  # length, correlation id, no tagged fields, throttle time, error code, no tagged fields


class Door:
    """One of tests.bench.doors, in a process of its own."""

    def __init__(self, kind: str, directory: str) -> None:
        command = [sys.executable, "-m", "tests.bench.doors", kind, directory]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def connected(port: int, payload: bytes) -> dict[int, tuple[socket.socket, bytes]]:
    """By descriptor: a connection with a subscription, and the push that it sends again and again."""
    found = {}
    for _ in range(CONNECTIONS):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(_request(71, bytes(16) + b"\0"))
        answer = client.recv(4096)
        instance_id, subscription_id = struct.unpack_from(">16si", answer, 15)
        head = struct.pack(">16siBb", instance_id, subscription_id, 0, 4)
        size = len(payload) + 1
        push = _request(72, head + bytes([size & 0x7F | 0x80, size >> 7]) + payload + b"\0")
        found[client.fileno()] = (client, push)
    return found


def acknowledged(port: int, payload: bytes, seconds: float) -> int:
    """How many pushes were answered with no error. Any other answer is a fault of the bench."""
    clients = connected(port, payload)
    poll = select.epoll()
    for descriptor, (client, push) in clients.items():
        poll.register(descriptor, select.EPOLLIN)
        client.sendall(push)
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for descriptor, _ in poll.poll(1):
            client, push = clients[descriptor]
            answer = client.recv(4096)
            assert len(answer) == _ANSWER_BYTES
            assert answer[13:15] == b"\0\0", answer
            count += 1
            client.send(push)
    for client, _ in clients.values():
        client.close()
    return count


def measured(kind: str, payload: bytes) -> float:
    """Pushes per CPU-second."""
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as directory:
        door = Door(kind, directory)
        try:
            acknowledged(door.port, payload, 0.3)  # warm
            before = door.cpu_s()
            count = acknowledged(door.port, payload, SECONDS)
            return count / (door.cpu_s() - before)
        finally:
            door.stop()


def main() -> None:
    for name, size in SIZES.items():
        payload = os.urandom(size)
        ours, bare = [], []
        for _ in range(RUNS):
            bare.append(measured("bare", payload))
            ours.append(measured("headroom", payload))
        rate, baseline = statistics.median(ours), statistics.median(bare)
        print(
            f"bench push_acknowledge_{name} value={rate:.0f} unit=pushes/cpu_s ratio={rate / baseline:.2f}"
            " baseline=bare_uvloop_loop",
            flush=True,
        )


def _request(api_key: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", api_key, 0, 1, 5) + b"bench" + b"\0" + body
    return struct.pack(">i", len(frame)) + frame


if __name__ == "__main__":
    main()
