"""`headroom top` and `headroom status`: exit codes and messages when no healthy `headroom serve` answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.cli.status import status_faults
from tests.kit.terminal.fake_serve import FakeServe, client_row


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
def test_error_responses_set_exit_code_and_message(status: int, body: bytes, code: int, message: str) -> None:
    with FakeServe({"/api/v1/headroom": (status, body)}) as serve:
        done = CliRunner().invoke(app, ["top", "--once", "--http", serve.http, "--level", "\udcff"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr == f"headroom: {message.format(address=serve.http)}\n"


def test_token_of_an_application_shows_its_own_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"level": "warn", "clients": [client_row("own", "warn", retry_after_ms=0, headroom_bytes_per_s=5.0)]}
    monkeypatch.setenv("HEADROOM_WEB__TOKEN", "operator")
    (tmp_path / "token").write_text("secret\n")
    with FakeServe({"/api/v1/me": document}) as serve:
        command = ["top", "--once", "--http", serve.http, "--token"]
        for token in ("secret", f"@{tmp_path / 'token'}"):
            done = CliRunner().invoke(app, [*command, token])
            assert (done.exit_code, done.stdout.splitlines()[1].split()[:2]) == (0, ["warn", "own"])
        as_json = CliRunner().invoke(app, [*command, "secret", "--output", "json"])
    assert json.loads(as_json.stdout) == document
    assert serve.authorizations == ["Bearer secret"] * 3
    for arguments in (["secret", "--by", "cost"], [f"@{tmp_path / 'missing'}"], ["sécret"]):
        done = CliRunner().invoke(app, [*command, *arguments])
        assert (done.exit_code, "cret" in done.stderr) == (2, False)


@pytest.mark.parametrize(
    ("command", "code"), [(["top", "--once"], 3), (["status"], 3), (["gateway", "share"], 1), (["cluster", "show"], 1)]
)
def test_refused_connection_says_what_to_start(command: list[str], code: int) -> None:
    done = CliRunner().invoke(app, [*command, "--http", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr == (
        "headroom: cannot reach 127.0.0.1:1: Connection refused; start `headroom serve`, or name its address with"
        " --http (http= in the first line that it prints)\n"
    )


WELL = {"ready": True, "reason": "", "degraded": [], "left_out": [], "metrics": [], "tiles": []}


def test_critical_tile_is_a_fault_although_all_records_are_stored() -> None:
    store = {"name": "store", "level": "critical", "text": "does not answer"}
    tiles = [store, {"name": "spool", "level": "ok", "text": ""}]
    assert status_faults({**WELL, "tiles": tiles}, 0) == ["store: does not answer"]


def test_status_names_who_was_not_metered() -> None:
    left_out = {"payer": "mallory\x1b[2J", "exchanges": 7, "last_ms": 1_000_000}
    status = {**WELL, "left_out": [left_out]}
    [fault] = status_faults(status, 1_600_000)
    assert fault.startswith("not metered: 7 exchanges of mallory")
    assert "\x1b" not in fault
    assert status_faults(status, 1_600_001) == []


def test_what_was_dropped_long_ago_is_no_fault() -> None:
    """Within ten minutes it is in `degraded`."""
    dropped = {"name": "headroom_dropped_total", "labels": 'reason="undecodable"', "value": 1.0}
    status = {**WELL, "metrics": [dropped]}
    assert status_faults(status, 0) == []
    assert status_faults({**status, "degraded": ["1 records were dropped"]}, 0) == ["degraded: 1 records were dropped"]
