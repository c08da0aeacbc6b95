"""`headroom serve --clickhouse` while the server is unavailable or refuses: it accepts pushes and writes them later."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from exporters.clickhouse.connection import WRITER
from exporters.clickhouse.managed.access import writer_password
from headroom.demo.processes import LOOPBACK, free_ports
from tests.headroom.server.processes.pushes import push
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.serving import Served, eventually, rows

pytestmark = pytest.mark.clickhouse

SUBSCRIPTIONS = "all: {metrics: '*', interval.ms: 100}\n"
SLOW_INSTANCES = """
CREATE VIEW headroom.client_instances_now AS
SELECT l.* FROM headroom.quick_client_instances_now AS l
CROSS JOIN (SELECT sleepEachRow(1) AS slept FROM numbers(120) SETTINGS max_block_size = 1) AS s
WHERE s.slept = 0
"""
USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, source, interval_ms)
SELECT 'c', 'producer_byte_rate', now() - 300 + number, 'u', 'a', 1, 'gateway', 1000 FROM numbers(600)
"""
COMPUTING = """
SELECT count() > 0 FROM system.processes
WHERE query LIKE '%client_instances_now%' AND query NOT LIKE '%system.processes%'
"""
REFUSAL = b"Code: 516. DB::Exception: default: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"


class Refuse(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.send_response(403)
        self.send_header("X-ClickHouse-Exception-Code", "516")
        self.send_header("Content-Length", str(len(REFUSAL)))
        self.end_headers()
        self.wfile.write(REFUSAL)

    def log_message(self, *_: object) -> None:
        pass


class Old(Refuse):
    """What clickhouse-connect asks when it connects: the version and the time zone, then settings (Native: no rows)."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b"24.8.14.39\tUTC\n" if b"version()" in asked else b"\x00\x00"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@contextmanager
def refusing(port: int, handler: type[Refuse] = Refuse) -> Iterator[None]:
    """A server that refuses every password."""
    with ThreadingHTTPServer((LOOPBACK, port), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@contextmanager
def accepting(directory: Path, port: int) -> Iterator[RunningClickHouse]:
    """A server that accepts everything."""
    with running_clickhouse(directory / "server", http_port=port) as server:
        yield server


@contextmanager
def frozen_while_it_computes_a_minute(clickhouse: RunningClickHouse) -> Iterator[None]:
    """The server stops (SIGSTOP) in a statement that a minute needs; rows of the last minutes are its cause."""
    process = clickhouse.server.process
    assert process is not None
    client = connected(clickhouse.writer)
    client.command("RENAME TABLE headroom.client_instances_now TO headroom.quick_client_instances_now")
    client.command(SLOW_INSTANCES)
    client.command(USAGE)
    eventually(lambda: client.query(COMPUTING).result_rows, lambda found: found == [(1,)])
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def stored(port: int) -> list[float]:
    return [value for (value,) in rows(f"{LOOPBACK}:{port}", "SELECT value FROM headroom.points ORDER BY value")]


def test_pushes_before_the_server_starts_are_written_later_and_its_freeze_delays_no_stop(tmp_path: Path) -> None:
    [port] = free_ports(1)
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    settings = tmp_path / "headroom.yaml"
    password = tmp_path / "server" / "writer.password"
    password.parent.mkdir()
    writer_password(password)
    settings.write_text(f"subscriptions: {tmp_path / 'subscriptions.yaml'}\nclickhouse_password_file: {password}\n")
    server = f"http://{WRITER}@{LOOPBACK}:{port}/headroom"
    began = time.monotonic()
    with Served(tmp_path, "--clickhouse", server, "--config", str(settings)) as headroom:
        assert headroom.ready()[0] == 503
        eventually(headroom.ready, lambda answer: "Connection refused" in answer[1])
        assert asyncio.run(push(headroom.address, 7)) == 0
        assert headroom.metrics()["headroom_store_up"] == 0
        assert (
            headroom.children("headroom.server.processes.network_process") == []
        )  # by default one process accepts clients
        with refusing(port):
            eventually(headroom.ready, lambda answer: "refuses user" in answer[1])
        with accepting(tmp_path, port) as clickhouse:
            eventually(headroom.ready, lambda answer: answer == (200, "ready\n"))
            eventually(lambda: stored(port), lambda values: values == [7])
            with frozen_while_it_computes_a_minute(clickhouse):
                assert headroom.stop() == 0
    lines = headroom.log.read_text().splitlines()
    assert all(line.startswith("{") for line in lines), "a library spoke"
    assert 1 <= sum("does not accept rows" in line for line in lines) <= 2 + (time.monotonic() - began) // 60


def test_silent_server_does_not_block_start_or_stop(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        server = f"http://{LOOPBACK}:{silent.getsockname()[1]}/headroom"
        with Served(tmp_path, "--clickhouse", server) as headroom:
            assert headroom.ready() == (503, "the store does not answer\n")
            assert headroom.stop() == 0


def test_sql_address_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with refusing(port), pytest.raises(RuntimeError) as failed, Served(tmp_path, "--sql", f"{LOOPBACK}:{port}"):
        pass
    said = f"headroom: --sql: cannot listen on {LOOPBACK}:{port}: Address already in use"
    assert str(failed.value) == f"headroom serve did not start: {said}"


def test_address_in_use_is_found_before_anything_starts(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with refusing(port), pytest.raises(RuntimeError) as failed, Served(tmp_path, "--http", f"{LOOPBACK}:{port}"):
        pass
    said = f"headroom: --http: cannot listen on {LOOPBACK}:{port}: Address already in use"
    assert str(failed.value) == f"headroom serve did not start: {said}"
    assert not {"clickhouse", "spool"} & {path.name for path in (tmp_path / "data").iterdir()}


def test_outdated_server_is_named_and_closes_kafka_to_nobody(tmp_path: Path) -> None:
    [port] = free_ports(1)
    server = f"http://{LOOPBACK}:{port}/headroom"
    with refusing(port, Old), Served(tmp_path, "--clickhouse", server) as headroom:
        why = "ClickHouse 24.8.14.39 is too old: Headroom needs 25.8 or newer\n"
        assert headroom.ready() == (503, why)
        assert headroom.serves_kafka() == (200, "ready\n")
    assert why.strip() in headroom.log.read_text()
