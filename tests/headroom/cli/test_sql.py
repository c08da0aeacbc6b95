import sys

import pytest

from headroom.cli.sql import run_sql
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.fake_clickhouse import fake_clickhouse, http


def test_result_bytes_are_written_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    body = bytes(range(256)) * 1000
    with fake_clickhouse(http(body)) as fake:
        assert run_sql("SELECT 1", fake.url, "Parquet", {}) == 0
    assert capfdbinary.readouterr() == (body, b"")
    head = fake.requests[0].decode()
    assert "X-ClickHouse-Format: Parquet" in head
    assert "database=headroom" in head
    assert head.endswith("SELECT 1")


def test_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = "a\tb\n\x1b]0;owned\x07 \N{RIGHT-TO-LEFT OVERRIDE}gpj.exe\r \x9b2J \xad \u2028 \u00fc\n"
    with fake_clickhouse(http(shown.encode() + b"\xff\xc3")) as fake:
        assert run_sql("SELECT 1", fake.url, None, {}) == 0
    assert b"X-ClickHouse-Format: PrettyCompact\r\n" in fake.requests[0]
    visible = r"\x1b]0;owned\x07 \u202egpj.exe\r \x9b2J \xad \u2028" + " \u00fc"
    assert capsys.readouterr().out.split("\n") == ["a\tb", visible, "\ufffd\ufffd"]


def test_terminal_gets_no_control_characters_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = "Code: 36. DB::Exception: 'a\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}'. (BAD_ARGUMENTS)"
    with fake_clickhouse(http(refusal.encode(), "400 Bad Request")) as fake:
        assert run_sql("SELECT 1", fake.url, None, {}) == 1
    assert capsys.readouterr().err == "headroom: Code: 36. DB::Exception: 'a\\x1b[31m\\u202e'. (BAD_ARGUMENTS)\n"


def test_user_comes_from_url_and_password_from_environment() -> None:
    with fake_clickhouse(http(b"")) as fake:
        url = fake.url.replace("//", "//us%40er@")
        assert run_sql("SELECT 1", url, None, {"HEADROOM_CLICKHOUSE_PASSWORD": "secret"}) == 0
    assert b"Authorization: Basic dXNAZXI6c2VjcmV0" in fake.requests[0]  # us@er:secret


@pytest.mark.parametrize(
    ("response", "line"),
    [
        (
            http(b"Code: 60. DB::Exception: Unknown table 'x'.\n  In scope y. (UNKNOWN_TABLE)\n", "404 Not Found"),
            "headroom: Code: 60. DB::Exception: Unknown table 'x'. In scope y. (UNKNOWN_TABLE)\n",
        ),
        (http(b"", "503 Service Unavailable"), "headroom: a proxy before URL answers in its place: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-ClickHouse-Format: TSV\r\n\r\nabc", "headroom: URL: "),
        (b"\x00\x00 not HTTP\r\n\r\n", "headroom: URL: "),
        (b"", "headroom: URL: "),
    ],
)
def test_server_failure_is_a_one_line_error(
    response: bytes, line: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with fake_clickhouse(response) as fake:
        assert run_sql("SELECT 1", fake.url, None, {}) == 1
    error = capfdbinary.readouterr().err.decode()
    assert error.startswith(line.replace("URL", fake.url))
    assert error.count("\n") == 1


def test_invalid_url_exits_with_1_and_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sql("SELECT 1", "http://user:sec%20ret@h:8123", None, {}) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headroom: cannot use --url: ")
    assert ("must not contain a password" in line, "HEADROOM_CLICKHOUSE_PASSWORD_FILE" in line) == (True, True)
    assert "ret" not in line


@pytest.mark.clickhouse
def test_queries_and_errors_of_a_real_server(
    clickhouse: RunningClickHouse, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run_sql("SELECT number, 'ü' FROM numbers(2)", clickhouse.url, None, {}) == 0
    assert run_sql("SELECT number FROM numbers(100000)", clickhouse.url, "Parquet", {}) == 0
    found, reported = capfdbinary.readouterr()
    assert run_sql("SELECT hex('\udcff')", clickhouse.url, None, {}) == 0
    assert capfdbinary.readouterr() == (b"FF\n", b"")
    assert run_sql("SELECT * FROM (SELECT 1", clickhouse.url, None, {}) == 1
    assert run_sql("SELECT throwIf(number = 900000) FROM numbers(1000000)", clickhouse.url, None, {}) == 1
    assert run_sql("DROP TABLE headroom.points", clickhouse.url, None, {}) == 1
    nothing, errors = capfdbinary.readouterr()
    assert found.startswith("0\tü\n1\tü\nPAR1".encode())
    assert found.endswith(b"PAR1")
    assert reported == nothing == b""
    syntax, late, refused = errors.decode().splitlines()
    assert syntax.startswith("headroom: Code: 62. DB::Exception: Syntax error: ")
    assert late.startswith("headroom: Code: 395. DB::Exception: ")
    assert refused.startswith("headroom: Code: 497. DB::Exception: ")
