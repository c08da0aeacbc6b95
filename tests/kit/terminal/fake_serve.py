"""An HTTP server that answers like the API of `headroom serve`, with the documents of a test."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

LONGEST_NAME = "orders-of-the-payments-team-01"  # 30 characters


class FakeServe:
    """A context manager. `answers`: a document, or a status with a body, by the path; they may change while it serves.
    Other paths are answered with 404. `asked` and `authorizations`: of each request."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []

    def __enter__(self) -> Self:
        fake = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked.append(self.path)
                fake.authorizations.append(self.headers.get("authorization"))
                answer = fake.answers.get(urlsplit(self.path).path, (404, b'{"error": "there is no such route"}'))
                status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Suppresses request logs."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.http = f"127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def client_row(client_id: str, level: str, **other: Any) -> dict[str, Any]:
    return {
        "cluster": "prod",
        "source": "gateway",
        "level": level,
        "client_id": client_id,
        "user": "alice",
        "team": "unowned",
        "quota_key": "producer_byte_rate",
        "matched_entity": f"client-id={client_id}",
        "utilization": 0.853,
        "utilization_p95": 0.912,
        "usage": 170_640.0,
        "group_usage": 170_640.0,
        "limit": 200_000.0,
        "implied_limit": None,
        "muted_ms": 0.0,
        "throttle_ms": 0.0,
        "broker_id": 1,
        "shared_with": 0,
        "reason": "at 85.3 % of producer_byte_rate 200.0 kB/s, 29.4 kB/s headroom on broker 1",
        "impact": "unknown",
        "impact_reason": "",
        "cause": "",
        "window_start": "2026-11-23 15:44:00",
        "software_name": "librdkafka",
        "software_version": "2.16",
        "instances": 1,
    } | other
