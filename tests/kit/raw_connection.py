"""A connection to a broker by request and response bodies, without a client library."""

import contextlib
import socket
import ssl
import struct
from typing import Self

from telemetry.wire.apis import APIS
from tests.kit import wire

PATIENCE_S = 60.0  # until a broker has applied its controller's decision


class RawConnection:
    """A connection that sends bodies of requests and returns bodies of responses. A context manager.

    `source`: the local address that it is bound to; "" leaves the choice to the system.
    """

    def __init__(self, bootstrap: str, source: str = "") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0))
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """Raises EOFError when the other side hangs up instead."""
        self.send(self.frame(api_key, version, body))
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)[4 + (APIS[api_key].flexible(version) and api_key != 18) :]

    def frame(self, api_key: int, version: int, body: bytes) -> bytes:
        self._correlation_id += 1
        return wire.request(api_key, body, b"raw", version, self._correlation_id)

    def send(self, data: bytes) -> None:
        """Bytes, which need not be whole requests. Raises OSError."""
        self._socket.sendall(data)

    def was_closed(self) -> bool:
        """Whether the other side closes the connection; answers before that are dropped. Raises TimeoutError."""
        try:
            while self._socket.recv(65_536):
                pass
        except ConnectionError:
            pass
        return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the other side closed the connection")
            data += piece
        return data


def client_hello(server_name: str) -> bytes:
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=server_name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()
