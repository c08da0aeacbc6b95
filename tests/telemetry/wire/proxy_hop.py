"""Load balancers: one that begins each connection with a PROXY header, and one before several gateways."""

import contextlib
import ipaddress
import itertools
import socket
import threading
from collections.abc import Iterator, Sequence

from tests.kit.proxy import forward

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
            forward(client, behind)


class TcpBalancer:
    """Listens on `ports` of `host` until the process ends; each leads to the same port of a backend that accepts the
    connection, in turn."""

    def __init__(self, host: str, ports: Sequence[int], backends: Sequence[str]) -> None:
        self._backends = backends
        self._turns = itertools.count()
        for port in ports:
            listener = socket.create_server((host, port), backlog=256)
            threading.Thread(target=self._accept_all, args=(listener, port), daemon=True).start()

    def _accept_all(self, listener: socket.socket, port: int) -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._serve, args=(client, port), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        turn = next(self._turns) % len(self._backends)
        for host in (*self._backends[turn:], *self._backends[:turn]):
            with contextlib.suppress(OSError):
                forward(client, socket.create_connection((host, port)))
                return
        client.close()
