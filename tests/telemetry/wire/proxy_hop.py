"""A load balancer that tells the client's address: forwards TCP connections and begins each with a PROXY header."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def header(client: tuple[str, int], to: tuple[str, int], version: int) -> bytes:
    """The header of IPv4 addresses."""
    if version == 1:
        return f"PROXY TCP4 {client[0]} {to[0]} {client[1]} {to[1]}\r\n".encode()
    packed = b"".join(ipaddress.IPv4Address(host).packed for host, _ in (client, to))
    return _SIGNATURE + b"\x21\x11\x00\x0c" + packed + client[1].to_bytes(2) + to[1].to_bytes(2)


@contextlib.contextmanager
def proxy_hop(to: tuple[str, int], version: int = 2) -> Iterator[tuple[str, int]]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        threading.Thread(target=_accept, args=(listener, to, version), daemon=True).start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, to: tuple[str, int], version: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, address = listener.accept()
            behind = socket.create_connection(to)
            behind.sendall(header(address[:2], to, version))
            for source, target in ((client, behind), (behind, client)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
