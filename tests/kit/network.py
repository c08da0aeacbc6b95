"""Connections to each network process of a `headroom serve`, and requests of telemetry clients."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from tests.chaos.load import metrics_data
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import PATIENCE_S, Served

NETWORK = "headroom.server.processes.network_process"
_GET, _PUSH = 71, 72
_ZERO_ID = bytes(16)


def processes(headroom: Served) -> list[psutil.Process]:
    """The network processes, the parent among them."""
    return [psutil.Process(headroom.process.pid), *headroom.children(NETWORK)]


@contextmanager
def spread(headroom: Served, count: int) -> Iterator[list[RawConnection]]:
    """At least `count` connections, and at least one to each network process."""
    with ExitStack() as stack:
        opened: list[RawConnection] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(opened) < count or not all(_clients(process, headroom) for process in processes(headroom)):
            assert time.monotonic() < deadline, f"{len(opened)} connections do not reach all processes"
            opened.append(stack.enter_context(RawConnection(headroom.kafka)))
        yield opened


def subscription(connection: RawConnection, client_instance_id: bytes = _ZERO_ID) -> tuple[int, bytes, int, int]:
    """Error code, client instance id, subscription id and interval in ms."""
    body = connection.ask(_GET, 0, client_instance_id + b"\0")
    _, code, instance_id, subscription_id = struct.unpack_from(">ih16si", body)
    codecs = body[26] - 1
    return code, instance_id, subscription_id, struct.unpack_from(">i", body, 27 + codecs)[0]


def push(connection: RawConnection, instance_id: bytes, subscription_id: int, value: int) -> int:
    """The error code."""
    payload = metrics_data([value], time.time_ns(), b"")
    assert len(payload) < 127  # its length is one byte
    head = struct.pack(">16siBb", instance_id, subscription_id, 0, 0) + bytes([len(payload) + 1])
    return int(struct.unpack_from(">h", connection.ask(_PUSH, 0, head + payload + b"\0"), 4)[0])


def _clients(process: psutil.Process, headroom: Served) -> int:
    port = headroom.address[1]
    return sum(
        found.status == psutil.CONN_ESTABLISHED and found.laddr.port == port for found in process.net_connections("tcp")
    )
