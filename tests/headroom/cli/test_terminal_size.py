"""Tables in a real terminal of 80 x 24 and 200 x 50: no cut number, short name or command. Exit codes and messages of
`headroom top` and `headroom status`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.cli.status import status_faults
from headroom.web.data import payer_rows
from headroom.web.tiles import Tile
from quota_metrics.config.entities import entity_of, text
from tests.kit.terminal.fake_serve import LONGEST_NAME, FakeServe, client_row
from tests.kit.terminal.pseudo_terminal import shown_by

SIZES = ((80, 24), (200, 50))
ROWS = [
    client_row(LONGEST_NAME, "throttled", usage=302_400.0, utilization=1.512, muted_ms=31_000.0),
    client_row("java-producer-warn", "warn", user=LONGEST_NAME),
    client_row("librdkafka-consumer-free", "ok", quota_key="consumer_byte_rate", limit=None, utilization=None),
]


HOSTILE = "User:\x1b[2J\u202emallory"
STATUS: dict[str, Any] = {
    "ready": True,
    "reason": "",
    "degraded": [],
    "left_out": [],
    "version": "headroom 0.1.0 (pure Python, Python 3.11.2, ClickHouse engine of chdb 3.7.2)",
    "over_budget": [{"payer": HOSTILE, "refused": {"requests": 1234567, "instances": 8}, "last_refused_ms": 5}],
    "tiles": [
        Tile("brokers and gateway", "ok", "3 brokers, 1,200 client connections")._asdict(),
        Tile(
            "pushes",
            "warn",
            "1,204.5 a second; 1,234,575 requests refused, their payer is over its budget",
            "HeadroomPayerOverBudget",
        )._asdict(),
        Tile("ingest lag", "ok", "oldest not stored: pushes 0.4 s, usage 0.0 s")._asdict(),
        Tile("spool", "ok", "9.0 kB of 4.3 GB, 11 days at this rate")._asdict(),
        Tile("store", "ok", "accepts rows")._asdict(),
    ],
    "metrics": [{"name": "headroom_store_up", "labels": "", "value": 1.0}],
}
PAYERS = payer_rows(
    STATUS["over_budget"],
    [],
    [{"payer": LONGEST_NAME, "pushes": 9876.0, "bytes": 1.5e9, "points": 987654321.0, "instances": 12.0}],
)


TOPICS = [
    {"topic": LONGEST_NAME, "direction": "out", "client_id": LONGEST_NAME, "user": HOSTILE, "rate": 302_400.0,
     "share": 0.75, "bytes": 1e9, "bytes_error": 1e7, "topic_team": "payments"},
    {"topic": "(others)", "direction": "in", "client_id": "(others)", "user": "", "rate": 0.0, "share": None,
     "bytes": 0.0, "bytes_error": 0.0, "topic_team": "unowned"},
]  # fmt: skip


@pytest.fixture
def serve() -> Iterator[FakeServe]:
    answers = {"headroom": ROWS, "status": STATUS, "payers": PAYERS, "topics": TOPICS}
    with FakeServe({f"/api/v1/{name}": answer for name, answer in answers.items()}) as fake:
        yield fake


@pytest.mark.parametrize("size", SIZES)
def test_top_once(serve: FakeServe, size: tuple[int, int]) -> None:
    code, lines = shown_by(["top", "--once", "--http", serve.http], *size)
    assert (code, all(len(line) <= size[0] for line in lines)) == (0, True)
    for row, line in zip(ROWS, lines[1:], strict=False):
        assert line.split("  ")[0] == row["level"]
        assert row["client_id"] in line
    assert "151.2 %" in lines[1]
    assert lines[1].count("200.0 kB/s") == 1
    if size[0] == 200:
        assert "producer_byte_rate" in lines[1]
        assert LONGEST_NAME in lines[2]
        assert ("302.4 kB/s" in lines[1], "31.0 s" in lines[1]) == (True, True)
    else:
        assert lines[-2].startswith("(no room in 80 columns for: ")
        assert "broker" in lines[-2]


@pytest.mark.parametrize("size", SIZES)
def test_status_has_five_lines_with_levels_and_runbooks(serve: FakeServe, size: tuple[int, int]) -> None:
    code, lines = shown_by(["status", "--http", serve.http], *size)
    assert (code, len(lines) < 24, all(len(line) <= size[0] for line in lines)) == (0, True, True)
    assert lines[0] == STATUS["version"]
    shown = " ".join(" ".join(lines).split())
    for tile in STATUS["tiles"]:
        assert f"{tile['level']} {tile['name']} {tile['text']}" in shown
    assert "runbook: HeadroomPayerOverBudget" in shown
    assert "User:\\x1b[2J\\u202emallory" in shown
    assert "1,234,575" in shown
    assert lines[-1] == "ready: nothing is late, dropped or degraded"


@pytest.mark.parametrize("size", SIZES)
def test_top_by_cost_names_payers_without_controls(serve: FakeServe, size: tuple[int, int]) -> None:
    code, lines = shown_by(["top", "--by", "cost", "--once", "--http", serve.http], *size)
    assert (code, all(len(line) <= size[0] for line in lines)) == (0, True)
    assert lines[1].startswith("User:\\x1b[2J\\u202emallory")
    assert "1,234,575" in lines[1]
    assert (LONGEST_NAME in lines[2], "987,654,321" in lines[2]) == (True, True)


@pytest.mark.parametrize("size", SIZES)
def test_top_by_topic_names_topic_client_and_rate(serve: FakeServe, size: tuple[int, int]) -> None:
    code, lines = shown_by(["top", "--by", "topic", "--http", serve.http], *size)
    assert (code, all(len(line) <= size[0] for line in lines)) == (0, True)
    assert (lines[1].count(LONGEST_NAME), "302.4 kB/s" in lines[1]) == (2, True)
    assert lines[2].startswith("(others)")
    if size[0] == 200:
        assert ("75.0 %" in lines[1], "1.0 %" in lines[1], "\\x1b[2J" in lines[1]) == (True, True, True)
        assert (lines[0].split()[1], "payments" in lines[1], "unowned" in lines[2]) == ("owner", True, True)


@pytest.mark.parametrize("options", [["--level", "warn"], ["--token", "secret"]])
def test_top_by_topic_refuses_what_topics_do_not_have(serve: FakeServe, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headroom", "top", "--by", "topic", *options, "--http", serve.http],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, f"goes without {options[0]}" in done.stderr) == (2, True)


@pytest.mark.parametrize("size", SIZES)
def test_top_by_user_adds_clients_up(serve: FakeServe, size: tuple[int, int]) -> None:
    code, lines = shown_by(["top", "--by", "user", "--once", "--http", serve.http], *size)
    assert (code, all(len(line) <= size[0] for line in lines)) == (0, True)
    assert lines[0].split()[:4] == ["level", "user", "quota", "clients"]
    named = [line.split()[:3] for line in lines[1:4]]
    assert named == [["throttled", "alice", "produce"], ["warn", LONGEST_NAME, "produce"], ["ok", "alice", "fetch"]]


def test_top_in_a_pipe_has_aligned_lines_without_boxes(serve: FakeServe) -> None:
    argv = [sys.executable, "-m", "headroom", "top", "--http", serve.http]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert re.split(" {2,}", lines[0])[:4] == ["level", "client", "user", "quota"]
    assert len(lines) == 1 + len(ROWS)
    assert done.stdout.isascii()
    at = lines[0].index("quota")
    assert [line[at:].split()[0] for line in lines[1:]] == [row["quota_key"] for row in ROWS]
    assert re.fullmatch(r"headroom: minute from 15:44:00 UTC, [\d.]+ h old: nothing newer is stored\n", done.stderr)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("output", ["table", "text"])
def test_quotas_resolve(tmp_path: Path, size: tuple[int, int], output: str) -> None:
    entries = [
        {"entity": {"user": LONGEST_NAME, "client-id": LONGEST_NAME}, "values": {"producer_byte_rate": 1234567890.0}},
        {"entity": {"client-id": LONGEST_NAME}, "values": {"producer_byte_rate": 987654321.0}},
    ]
    (tmp_path / "rules.json").write_text(json.dumps({"entries": entries}))
    flags = ["--from", str(tmp_path / "rules.json"), "--user", LONGEST_NAME, "--client-id", LONGEST_NAME]
    code, lines = shown_by(["quotas", "resolve", *flags, "--output", output], *size)
    shown = "\n".join(lines)
    assert (code, "1234567890" in shown) == (0, True)
    assert text(entity_of({"user": LONGEST_NAME, "client-id": LONGEST_NAME})) in shown
    assert f"987654321 {text(entity_of({'client-id': LONGEST_NAME}))}" in shown


@pytest.mark.parametrize("output", ["table", "text"])
def test_a_client_without_a_rule_is_told_so(tmp_path: Path, output: str) -> None:
    (tmp_path / "rules.json").write_text('{"entries": []}')
    flags = ["--from", str(tmp_path / "rules.json"), "--client-id", "free", "--output", output]
    assert shown_by(["quotas", "resolve", *flags], 80, 24) == (
        0,
        ["no rule applies to {client-id=free}: it has no quota"],
    )


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
    assert CliRunner().invoke(app, ["top", "--by", "cost", "--user", "u"]).exit_code == 2  # it would show all users


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
