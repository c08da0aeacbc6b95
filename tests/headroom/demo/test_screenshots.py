"""Screenshots with Chromium where it is installed."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headroom.demo.screenshots import take_screenshots


class Page(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 shared on purpose: a handler lives for one request

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><h1>page</h1>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.browser
def test_screenshot_is_taken_of_each_page(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        names = take_screenshots(f"127.0.0.1:{server.server_port}", "demo", tmp_path)
        server.shutdown()
    pages = ("overview", "client", "quotas", "what-if", "subscriptions", "preview", "status")
    assert names == [f"page-{name}.png" for name in pages]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert any("java-producer-throttled" in path for path in Page.asked)


def test_no_screenshots_without_chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert take_screenshots("127.0.0.1:1", "demo", tmp_path) == []
