"""A forward proxy for HTTP: it refuses everything, or passes it on; it notes what it was asked. And bytes between two
sockets."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Proxy(ThreadingHTTPServer):
    """`requests`: their first lines; `logins`: their Proxy-Authorization. `passes_to`: HOST:PORT, else the answer is
    403."""

    def __init__(self, passes_to: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.passes_to = passes_to
        self.requests: list[str] = []
        self.logins: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class ProxyHandler(BaseHTTPRequestHandler):
    """What proxies have in common: the answer of another server becomes theirs."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class _Handler(ProxyHandler):
    server: Proxy

    def __getattr__(self, name: str) -> Any:
        """Each method, `do_GET` and the others, is answered alike."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        self.server.requests.append(self.requestline)
        self.server.logins.append(self.headers.get("Proxy-Authorization", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.server.passes_to:
            self.reply(403, [], b"refused by the proxy")
            return
        if self.command == "CONNECT":
            host, _, port = self.server.passes_to.partition(":")
            behind = socket.create_connection((host, int(port)))
            self.reply(200, [], b"")
            for thread in forward(self.connection, behind):
                thread.join()
            self.close_connection = True
            return
        target = urlsplit(self.path)._replace(scheme="", netloc="").geturl() or "/"
        connection = http.client.HTTPConnection(self.server.passes_to, timeout=60)
        not_passed = ("host", "proxy-authorization")  # the name is that which only the proxy knows
        headers = {name: value for name, value in self.headers.items() if name.lower() not in not_passed}
        connection.request(self.command, target, body, headers)
        answer = connection.getresponse()
        self.reply(answer.status, answer.getheaders(), answer.read())
        connection.close()


@contextlib.contextmanager
def running_proxy(passes_to: str = "") -> Iterator[Proxy]:
    with Proxy(passes_to) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def forward(client: socket.socket, behind: socket.socket) -> list[threading.Thread]:
    """Passes bytes on both ways until one side ends."""
    ways = ((client, behind), (behind, client))
    threads = [threading.Thread(target=_copy, args=way, daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    return threads


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
