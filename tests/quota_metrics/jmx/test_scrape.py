"""One scrape over HTTP: the request, and targets that are down, invalid, too large or too slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headroom.demo.processes import free_ports
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target, scrape

METRICS = b'kafka_server_quota_byte_rate{clientId="a",resource="Produce"} 1\n'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization", "")))  # type: ignore[attr-defined] # ours
        status = {"/denied": 401}.get(self.path, 200)
        self.send_response(status)
        self.end_headers()
        if self.path == "/endless":
            while True:
                self.wfile.write(METRICS * 100)
        if self.path == "/slow":
            for _ in range(20):
                self.wfile.write(b"#\n")
                time.sleep(0.05)
        self.wfile.write(METRICS)

    def do_POST(self) -> None:
        self.server.seen.append((self.command, self.path, self.rfile.read(int(self.headers["Content-Length"]))[:9]))  # type: ignore[attr-defined] # ours
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'[{"status":200,"value":{"kafka.server:client-id=a,type=Produce":{"byte-rate":1}}}]')

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is reported."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            """The client has seen enough."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen = []  # type: ignore[attr-defined] # ours
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def target(server: ThreadingHTTPServer, path: str, agent: Agent = Agent.PROMETHEUS, user: str = "") -> Target:
    return Target(1, agent, f"http://{user}127.0.0.1:{server.server_port}{path}")


def test_scrape_sends_get_for_prometheus_and_post_for_jolokia(server: ThreadingHTTPServer) -> None:
    exposed = scrape(target(server, "/metrics?x=1", user="me:s%40cret@"), timeout_s=5, max_bytes=1 << 20)
    paths = ("/jolokia/", "/jolokia", "/jolokia?x=1", "")  # the agent answers 404 without the slash
    answers = [scrape(target(server, path, Agent.JOLOKIA), timeout_s=5, max_bytes=1 << 20) for path in paths]
    assert all(answer.values == exposed.values == {("Produce", "", "a"): {"byte-rate": 1.0}} for answer in answers)
    assert server.seen == [  # type: ignore[attr-defined] # ours
        ("GET", "/metrics?x=1", "Basic bWU6c0BjcmV0"),
        *(("POST", path, b'[{"type":') for path in ("/jolokia/", "/jolokia/", "/jolokia/?x=1", "/")),
    ]


@pytest.mark.parametrize(
    ("path", "timeout_s", "said"),
    [("/denied", 30.0, "answered 401"), ("/endless", 30.0, "larger than 100000 bytes"), ("/slow", 0.3, "too long")],
)
def test_invalid_response_raises_scrape_error(
    server: ThreadingHTTPServer, path: str, timeout_s: float, said: str
) -> None:
    with pytest.raises(ScrapeError, match=said):
        scrape(target(server, path, user="me:hidden@"), timeout_s=timeout_s, max_bytes=100_000)


def test_unreachable_target_raises_scrape_error_without_password() -> None:
    with pytest.raises(ScrapeError, match="refused") as caught:
        scrape(Target(1, Agent.JOLOKIA, f"http://me:hidden@127.0.0.1:{free_ports(1)[0]}/"), timeout_s=1, max_bytes=10)
    assert "hidden" not in str(caught.value)
