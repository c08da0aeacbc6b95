"""What stands between Headroom and ClickHouse elsewhere: chproxy, a gateway with a path, a load balancer."""

import contextlib
import http.client
import itertools
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from exporters.clickhouse.connection import Endpoint
from tests.kit.proxy import ProxyHandler, forward

# chproxy passes on these, and drops what it does not know: settings are to be in its own configuration.
_CHPROXY_PASSES = frozenset(
    {
        "query",
        "database",
        "default_format",
        "compress",
        "decompress",
        "client_protocol_version",
        "enable_http_compression",
        "session_id",
        "session_timeout",
    }
)


class _Forwarding(ProxyHandler):
    upstream: Endpoint
    max_bytes: int = sys.maxsize  # larger requests are answered as by nginx, at once and without reading them
    refused: list[int]  # their sizes
    prefix: str = ""  # ClickHouse is served below this path, and nothing else
    drops_settings: bool = False  # of the URL, as chproxy does
    hides_errors: bool = False  # a response that broke off ends as if it were whole

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def _forward(self) -> None:
        nbytes = int(self.headers.get("Content-Length", 0))
        if nbytes > self.max_bytes:
            self.refused.append(nbytes)
            self.send_error(413)
            return
        parts = urlsplit(self.path)
        body = self._body(nbytes)
        if self.prefix and not f"{parts.path}/".startswith(f"{self.prefix}/"):
            self.reply(404, [("Content-Type", "text/html")], b"<html>no such service</html>")
            return
        names = parse_qsl(parts.query, keep_blank_values=True)
        if self.drops_settings:
            names = [(name, value) for name, value in names if name in _CHPROXY_PASSES or name.startswith("param_")]
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "connection")}
        headers.pop("Transfer-Encoding", None)
        if self.hides_errors:
            headers.pop("Accept-Encoding", None)
        connection = http.client.HTTPConnection(self.upstream.host, self.upstream.port, timeout=60)
        with contextlib.closing(connection):
            path = parts.path.removeprefix(self.prefix) or "/"
            connection.request(self.command, f"{path}?{urlencode(names)}", body, headers)
            response = connection.getresponse()
            try:
                content = response.read()
            except http.client.IncompleteRead as exc:
                content = exc.partial
            if self.hides_errors:
                content = content.partition(b"__exception__")[0]
            self.reply(response.status, response.getheaders(), content)

    def _body(self, nbytes: int) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(nbytes)
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


@contextlib.contextmanager
def http_proxy(upstream: Endpoint, **kind: Any) -> Iterator[str]:
    """Yields its URL, without `prefix`. `kind`: in what it differs from a proxy that passes everything on."""
    handler = type("Forwarding", (_Forwarding,), {"upstream": upstream, **kind})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def load_balancer(*upstreams: Endpoint) -> Iterator[str]:
    """Each connection goes to the next server, as behind a service of Kubernetes; yields its URL."""
    turn = itertools.cycle(upstreams)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            node = next(turn)
            forward(client, socket.create_connection((node.host, node.port)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
