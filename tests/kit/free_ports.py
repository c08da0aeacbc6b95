"""Ports beside each other, as a listener and its brokers have them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from headroom.demo.processes import LOOPBACK


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
