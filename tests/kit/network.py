"""Connections to each network process of a `headroom serve`, and requests of telemetry clients."""

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from tests.chaos.load import metrics_data
from tests.kit import wire
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import PATIENCE_S, Served

NETWORK = "headroom.server.processes.network_process"


def processes(headroom: Served) -> list[psutil.Process]:
    """The network processes, the parent among them."""
    return [psutil.Process(headroom.process.pid), *headroom.children(NETWORK)]


@contextmanager
def spread(headroom: Served, count: int) -> Iterator[list[RawConnection]]:
    """At least `count` connections, and at least one to each network process."""
    port = headroom.address[1]

    def has_client(process: psutil.Process) -> bool:
        sockets = process.net_connections("tcp")
        return any(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in sockets)

    with ExitStack() as stack:
        opened: list[RawConnection] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(opened) < count or not all(has_client(process) for process in processes(headroom)):
            assert time.monotonic() < deadline, f"{len(opened)} connections do not reach all processes"
            opened.append(stack.enter_context(RawConnection(headroom.kafka)))
        yield opened


def subscription(connection: RawConnection, client_instance_id: bytes = wire.NEW_ID) -> wire.Subscription:
    return wire.read_subscription(connection.ask(wire.GET, 0, client_instance_id + b"\0"))


def push(connection: RawConnection, instance_id: bytes, subscription_id: int, value: int) -> int:
    """The error code."""
    body = wire.push_body(instance_id, subscription_id, 0, metrics_data([value], time.time_ns(), b""))
    return int(struct.unpack_from(">h", connection.ask(wire.PUSH, 0, body), 4)[0])
