"""Ports beside each other, as a listener and its brokers have them; addresses at which nobody answers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headroom.demo.processes import LOOPBACK, free_ports


def free_range(size: int) -> int:
    for port in range(20_000, 30_000, size):
        with ExitStack() as stack:
            try:
                for number in range(port, port + size):
                    stack.enter_context(socket.create_server((LOOPBACK, number)))
            except OSError:
                continue
            return port
    raise AssertionError("no free ports")


@contextmanager
def nothing() -> Iterator[str]:
    yield f"{LOOPBACK}:{free_ports(1)[0]}"


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"
