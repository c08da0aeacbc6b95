"""Attacks on the Kafka listener of a running sink: patterns, administration, memory, floods, invalid bytes."""

import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.attack.victim import MB, attack, was_closed
from tests.kit import wire
from tests.kit.network import push, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served, config_file, eventually
from tests.oracle import administration_oracle as requests

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

HELD_BYTES = 16 * MB
HALF_BYTES = 1_000_000  # of each of 250 incomplete pushes: 250 MB without a budget
SLACK_MB = 64.0  # of the process itself: spool buffers, logs, what the allocator keeps
LATENCY_S = 30.0  # only a blocked process takes as long: backtracking takes hours
SECRET = "nobody-may-see-this"  # part of each secret below
SECRETS: dict[str, Any] = {
    "web": {"token": f"{SECRET}-web"},
    "grpc": {"listen": "127.0.0.1:0", "token": f"{SECRET}-grpc"},
    "otlp": {"http": "127.0.0.1:0", "token": f"{SECRET}-otlp"},
    "forward": {"endpoint": "http://127.0.0.1:1", "headers": {"authorization": f"Bearer {SECRET}"}},
    "store": {"server": {"reader_password": f"{SECRET}-reader"}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = {"max_held_bytes": HELD_BYTES, "frame_timeout_ms": 8_000, "max_connections_per_address": 300}
    directory = tmp_path_factory.mktemp("listener")
    with Served(directory, *config_file(directory, gateway=limits, **SECRETS)) as running:
        yield running


def alter(served: Served, name: str, **values: str) -> list[tuple[int, str | None]]:
    body = requests.incremental(1, [(16, name, [(key.replace("_", "."), 0, value) for key, value in values.items()])])
    with RawConnection(served.kafka) as connection:
        reported = requests.decoded(44, 1, connection.ask(44, 1, body))
    return [(int(result.error_code), result.error_message) for result in reported.responses]


def test_backtracking_pattern_does_not_block_the_service(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """With a backtracking engine the first client below blocks the process for hours."""
    with attack(served, "selector (a+)+$ and a client id of 34 a's and a !", capsys) as report:
        assert alter(served, "bomb", match="client_id=(a+)+$") == [(0, None)]
        with wire.connect(served.address[1]) as client, client.makefile("rb") as answers:
            for _ in range(20):
                client.sendall(wire.request(wire.GET, uuid.uuid4().bytes + b"\0", b"a" * 34 + b"!"))
            for _ in range(20):
                (size,) = struct.unpack(">i", answers.read(4))
                assert answers.read(size)[9:11] == b"\0\0"
        [(code, message)] = alter(served, "bomb2", match="client_id=(?!b)a+")
        assert (code, "lookahead" in str(message)) == (40, True)
        report.shown = "answered; a pattern that needs backtracking: INVALID_CONFIG"
    assert report.bystander.worst_s < LATENCY_S


def test_partial_pushes_stay_within_the_memory_budget(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    half = wire.push(uuid.uuid4().bytes, 1, 0, bytes(HALF_BYTES))[:-1]
    before = served.metrics()
    with attack(served, f"250 half-sent pushes of {HALF_BYTES} bytes", capsys) as report, ExitStack() as stack:
        for number in range(250):
            client = stack.enter_context(wire.connect(served.address[1]))
            with suppress(ConnectionError):  # closed for the budget before its last byte
                client.sendall(half)
            if number % 25 == 0:
                assert served.metrics()["headroom_held_request_bytes"] <= HELD_BYTES
        for_budget, for_time = eventually(lambda: closed_since(served, before), lambda closed: sum(closed) == 250)
        eventually(served.metrics, lambda found: found["headroom_held_request_bytes"] == 0)
        assert for_budget > 0  # how many depends on how many the machine sends before the first time-outs
        report.shown = f"{for_budget:.0f} closed for the budget, {for_time:.0f} for the deadline"
    assert report.peak_mb < HELD_BYTES / MB + SLACK_MB
    assert report.left_mb < SLACK_MB
    assert report.bystander.worst_s < LATENCY_S


def closed_since(served: Served, before: dict[str, float]) -> tuple[float, float]:
    names = [f"headroom_connections_closed_total:{reason}" for reason in ("held_bytes", "frame_timeout")]
    after = served.metrics()
    for_budget, for_time = (after[name] - before[name] for name in names)
    return for_budget, for_time


def test_secrets_do_not_appear_in_any_output(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    config = served.argv[served.argv.index("--config") + 1]
    with attack(served, "looking for secrets in ps, logs, pages, files and error messages", capsys) as report:
        with RawConnection(served.kafka) as connection:  # a push that cannot be forwarded
            _, instance_id, subscription_id, _ = subscription(connection)
            assert push(connection, instance_id, subscription_id, 1) == 0
        eventually(served.metrics, lambda metrics: metrics["headroom_forward_failures_total"] > 0)
        processes = [served_by := psutil.Process(served.process.pid), *served_by.children(recursive=True)]
        found = {"the log": served.log.read_text(), "the ready line": str(served.addresses)}
        found |= {f"ps {process.pid}": " ".join(process.cmdline()) for process in processes}
        pages = ("/metrics", "/readyz", "/healthz", "/api/v1/status", "/")
        found |= {path: httpx.get(f"http://{served.http}{path}", timeout=30).text for path in pages}
        found["config show"] = command("config", "show", "--config", config)
        for name, value in REFUSED_SECRETS.items():
            found[name] = command("config", "check", "--config", config, **{name: value})
            assert found[name].startswith("headroom: "), found[name]
        files = {}  # that other users may read; some are deleted while they are listed
        for file in Path(served.argv[served.argv.index("--data") + 1]).rglob("*"):
            with suppress(FileNotFoundError):
                if file.is_file() and file.stat().st_mode & 0o077:
                    files[str(file)] = file.read_bytes().decode("latin-1")
        found |= files
        assert [where for where, text in found.items() if SECRET in text] == []
        report.shown = (
            f"not in {len(processes)} command lines, {len(files)} files that others may read, {len(found)} texts in all"
        )


# Values that the settings refuse: the message must not quote them.
REFUSED_SECRETS = {
    "HEADROOM_WEB__TOKEN": SECRET[:9],
    "HEADROOM_CLICKHOUSE": f"http://user:{SECRET}@127.0.0.1:8123",
    "HEADROOM_FORWARD__ENDPOINT": f"https://user:{SECRET}@127.0.0.1:4317",
    "HEADROOM_FORWARD__HEADERS": f'{{"authorization": ["{SECRET}"]}}',
}


def command(*arguments: str, **environment: str) -> str:
    """What a command of Headroom prints, on both streams."""
    argv = [sys.executable, "-m", "headroom", *arguments]
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


GARBAGE = {
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a negative length": b"\xff\xff\xff\xff",
    "2 GB announced": b"\x7f\xff\xff\xff" + bytes(100),
    "an unknown API": wire.request(999, b""),
    "an API without a broker": wire.request(0, bytes(50), version=9),
    "a client id beyond the frame": struct.pack(">ihhih", 20, 72, 0, 1, 30_000) + bytes(30),
    "random bytes": bytes(range(256)) * 4,
}


def test_invalid_bytes_close_the_connection_and_are_logged_sparsely(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    before = served.metrics()["headroom_protocol_errors_total"]
    logged, began = served.log.read_text().count("connection closed"), time.monotonic()
    with attack(served, f"garbage 20 times: {', '.join(GARBAGE)}", capsys) as report:
        for _ in range(20):
            for name, garbage in GARBAGE.items():
                with wire.connect(served.address[1]) as client:
                    client.sendall(garbage)
                    assert was_closed(client), name
        errors = served.metrics()["headroom_protocol_errors_total"] - before
        lines = served.log.read_text().count("connection closed") - logged
        report.shown = f"{errors:.0f} connections closed, {lines} lines in the log"
        assert errors == 20 * len(GARBAGE)
        minutes = 2 + (time.monotonic() - began) // 60  # that this may have touched
        assert lines <= 20 * minutes, "20 per minute, so that clients cannot fill a disk"
        assert minutes > 7 or lines < errors
    assert report.peak_mb < SLACK_MB
    assert report.bystander.worst_s < LATENCY_S
