"""A server that greets a client as ClickHouse does, and answers its statements with given bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = "26.1.1.1"


class FakeClickHouse:
    """`requests`: head and body of what was asked after the greeting; `greetings`: of what was asked before."""

    def __init__(self, response: bytes, listener: socket.socket, version: str) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.greetings: list[bytes] = []
        self._response = response
        self._listener = listener
        self._version = version

    def serve(self) -> None:
        """Until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                request = _request(connection)
                greeting = self._greeting(request)
                (self.requests if greeting is None else self.greetings).append(request)
                connection.sendall(self._response if greeting is None else http(greeting))

    def _greeting(self, request: bytes) -> bytes | None:
        if not self._version:
            return None
        if b"SELECT version(), timezone()" in request:
            return f"{self._version}\tUTC\n".encode()
        return b"" if b"FROM system.settings" in request or b"SELECT 1 AS check" in request else None


@contextmanager
def fake_clickhouse(response: bytes, version: str = VERSION) -> Iterator[FakeClickHouse]:
    """Listens on a port of its own until the block ends. `version`: "" for another server, which does not greet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fake = FakeClickHouse(response, listener, version)
        thread = threading.Thread(target=fake.serve, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def http(body: bytes, status: str = "200 OK", *, written_rows: int = 0) -> bytes:
    """A response after which the connection is closed. `written_rows`: how many rows it confirms."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\nX-ClickHouse-Format: TabSeparated"
    if written_rows:
        head += f'\r\nX-ClickHouse-Summary: {{"written_rows": "{written_rows}"}}'
    return f"{head}\r\n\r\n".encode() + body


def _request(connection: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        if not (more := connection.recv(65536)):
            return request
        request += more
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < int(lengths[0] if lengths else 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
