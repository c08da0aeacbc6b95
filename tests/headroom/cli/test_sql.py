from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from headroom.cli.sql import run_sql
from tests.kit.clickhouse import RunningClickHouse


@contextlib.contextmanager
def server(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Takes one request and answers with these bytes, then closes. The URL, and the request when it was answered."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request = b""
                while not request.endswith(b"SELECT 1"):  # head and body arrive separately
                    request += connection.recv(65536)
                requests.append(request)
                connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_result_bytes_are_written_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    body = bytes(range(256)) * 1000
    with server(http(body)) as (url, requests):
        assert run_sql("SELECT 1", url, "Parquet", {}) == 0
    assert capfdbinary.readouterr() == (body, b"")
    head = requests[0].decode()
    assert "default_format=Parquet" in head
    assert "database=headroom" in head
    assert head.endswith("SELECT 1")


def test_output_to_a_pipe_is_tsv(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with server(http(b"1\n")) as (url, requests):
        assert run_sql("SELECT 1", url, None, {}) == 0
    assert b"default_format=TabSeparated" in requests[0]
    assert capfdbinary.readouterr().out == b"1\n"


def test_user_comes_from_url_and_password_from_environment() -> None:
    with server(http(b"")) as (url, requests):
        assert (
            run_sql("SELECT 1", url.replace("//", "//us%40er@"), None, {"HEADROOM_CLICKHOUSE_PASSWORD": "secret"}) == 0
        )
    assert b"Authorization: Basic dXNAZXI6c2VjcmV0" in requests[0]  # us@er:secret


@pytest.mark.parametrize(
    ("response", "line"),
    [
        (
            http(b"Code: 60. DB::Exception: Unknown table 'x'.\n  In scope y. (UNKNOWN_TABLE)\n", "404 Not Found"),
            "headroom: Code: 60. DB::Exception: Unknown table 'x'. In scope y. (UNKNOWN_TABLE)\n",
        ),
        (http(b"", "503 Service Unavailable"), "headroom: 127.0.0.1:PORT answered 503\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "headroom: 127.0.0.1:PORT broke off"),
        (b"\x00\x00 not HTTP\r\n\r\n", "headroom: 127.0.0.1:PORT broke off"),
        (b"", "headroom: "),
    ],
)
def test_server_failure_is_a_one_line_error(
    response: bytes, line: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with server(response) as (url, _):
        assert run_sql("SELECT 1", url, None, {}) == 1
    error = capfdbinary.readouterr().err.decode()
    assert error.startswith(line.replace("PORT", url.rpartition(":")[2]))
    assert error.count("\n") == 1


def test_unreachable_server_exits_with_1(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert run_sql("SELECT 1", f"http://127.0.0.1:{port}", None, {}) == 1
    expected = f"headroom: cannot reach 127.0.0.1:{port}: Connection refused\n"
    assert capfdbinary.readouterr() == (b"", expected.encode())


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8123", "http://", "http://h:x", "http://h:99999", "ftp://h", "http://h:0", "http://a..b:1"]
)
def test_invalid_url_exits_with_1(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_sql("SELECT 1", url, None, {}) == 1
    error = capfdbinary.readouterr().err
    assert error.startswith(b"headroom: cannot use ")
    assert error.count(b"\n") == 1


def test_password_in_url_is_refused_and_not_shown(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_sql("SELECT 1", "http://user:sec%20ret@h:8123", None, {}) == 1
    error = capfdbinary.readouterr().err
    assert b"must not contain a password" in error
    assert b"HEADROOM_CLICKHOUSE_PASSWORD_FILE" in error
    assert b"ret" not in error


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
