"""`headroom top` and `headroom status`: exit codes and messages when no healthy `headroom serve` answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.cli.serve_api import START
from headroom.cli.status import status_faults
from tests.kit.terminal.fake_serve import client_row


class Answer(BaseHTTPRequestHandler):
    """Answers as the server's `answer` says."""

    def do_GET(self) -> None:
        status, body = self.server.answer  # type: ignore[attr-defined] # the test's
        shown = self.path.partition("?")[0], self.headers.get("authorization")
        self.server.asked = shown  # type: ignore[attr-defined] # the test's
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses request logs."""


@pytest.fixture
def other_server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("address", ["", "foo", ":1", "http://[::1", "127.0.0.1:99999", "a..b:1", "ftp://a:1", "//:80"])
def test_invalid_address_exits_with_2(address: str) -> None:
    for command in (["status"], ["top"], ["gateway", "share"]):
        done = CliRunner().invoke(app, [*command, "--http", address])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"headroom: --http {address!r} is not HOST:PORT or http(s)://HOST[:PORT]\n"


@pytest.mark.parametrize("token", ["secret\n", "s\u00e9cret", "s\u4e2dcret"])
def test_invalid_token_is_not_printed(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HEADROOM_WEB__TOKEN", token)
    done = CliRunner().invoke(app, ["status", "--http", "127.0.0.1:1"])
    assert (done.exit_code, done.output.count("cret")) == (2, 0)
    assert done.stderr.startswith("headroom: HEADROOM_WEB__TOKEN has characters other than visible ASCII")


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (200, b"<html>", 3, "{address} answers, but is not the HTTP address of `headroom serve`"),
        (404, b"There is no handle /", 3, "{address}: answered 404: There is no handle /"),
        (503, b'{"error":"the store cannot be read"}', 3, "{address}: the store cannot be read"),
        (400, b'{"error":"level must be one or more of ok"}', 2, "level must be one or more of ok"),
    ],
)
def test_error_responses_set_exit_code_and_message(
    other_server: HTTPServer, status: int, body: bytes, code: int, message: str
) -> None:
    other_server.answer = status, body  # type: ignore[attr-defined] # see Answer
    address = f"127.0.0.1:{other_server.server_port}"
    done = CliRunner().invoke(app, ["top", "--once", "--http", address, "--level", "\udcff"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr == f"headroom: {message.format(address=address)}\n"


def test_token_of_an_application_shows_its_own_view(
    other_server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"level": "warn", "clients": [client_row("own", "warn", retry_after_ms=0, headroom_bytes_per_s=5.0)]}
    other_server.answer = 200, json.dumps(document).encode()  # type: ignore[attr-defined] # see Answer
    monkeypatch.setenv("HEADROOM_WEB__TOKEN", "operator")
    (tmp_path / "token").write_text("secret\n")
    command = ["top", "--once", "--http", f"127.0.0.1:{other_server.server_port}", "--token"]
    for token in ("secret", f"@{tmp_path / 'token'}"):
        done = CliRunner().invoke(app, [*command, token])
        assert (done.exit_code, done.stdout.splitlines()[1].split()[:2]) == (0, ["warn", "own"])
        assert other_server.asked == ("/api/v1/me", "Bearer secret")  # type: ignore[attr-defined] # see Answer
    as_json = CliRunner().invoke(app, [*command, "secret", "--output", "json"])
    assert json.loads(as_json.stdout) == document
    for arguments in (["secret", "--by", "cost"], [f"@{tmp_path / 'missing'}"], ["sécret"]):
        done = CliRunner().invoke(app, [*command, *arguments])
        assert (done.exit_code, "cret" in done.stderr) == (2, False)


def test_closed_port_exits_with_3() -> None:
    done = CliRunner().invoke(app, ["status", "--http", "127.0.0.1:1"])
    assert (done.exit_code, done.stderr) == (3, f"headroom: cannot reach 127.0.0.1:1: Connection refused{START}\n")


def test_critical_tile_is_a_fault_although_all_records_are_stored() -> None:
    tiles = [
        {"name": "store", "level": "critical", "text": "does not answer"},
        {"name": "spool", "level": "ok", "text": ""},
    ]
    status = {"ready": True, "reason": "", "degraded": [], "left_out": [], "metrics": [], "tiles": tiles}
    assert status_faults(status, 0) == ["store: does not answer"]


def test_status_names_who_was_not_metered() -> None:
    left_out = {"payer": "mallory\x1b[2J", "exchanges": 7, "last_ms": 1_000_000}
    status = {"ready": True, "reason": "", "degraded": [], "left_out": [left_out], "metrics": [], "tiles": []}
    [fault] = status_faults(status, 1_600_000)
    assert fault.startswith("not metered: 7 exchanges of mallory")
    assert "\x1b" not in fault
    assert status_faults(status, 1_600_001) == []


def test_what_was_dropped_long_ago_is_no_fault() -> None:
    """Within ten minutes it is in `degraded`."""
    dropped = {"name": "headroom_dropped_total", "labels": 'reason="undecodable"', "value": 1.0}
    status = {"ready": True, "reason": "", "degraded": [], "left_out": [], "metrics": [dropped], "tiles": []}
    assert status_faults(status, 0) == []
    assert status_faults({**status, "degraded": ["1 records were dropped"]}, 0) == ["degraded: 1 records were dropped"]
