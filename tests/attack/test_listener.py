"""Attacks on the Kafka listener of a running sink: patterns, administration, memory, floods, invalid bytes."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attack.victim import MB, attack, connect, frame, push_frame, victim, was_closed
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served, eventually
from tests.oracle import administration_oracle as requests

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

HELD_BYTES = 16 * MB
HALF_BYTES = 1_000_000  # of each of 250 incomplete pushes: 250 MB without a budget
OVERSIZE_BYTES = 90 * MB  # below the largest frame of Kafka, 100 MiB
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
    with victim(tmp_path_factory.mktemp("listener"), gateway=limits, **SECRETS) as running:
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
        with connect(served) as client, client.makefile("rb") as answers:
            for _ in range(20):
                client.sendall(frame(71, 0, uuid.uuid4().bytes + b"\0", client_id=b"a" * 34 + b"!"))
            for _ in range(20):
                (size,) = struct.unpack(">i", answers.read(4))
                assert answers.read(size)[9:11] == b"\0\0"
        [(code, message)] = alter(served, "bomb2", match="client_id=(?!b)a+")
        assert (code, "lookahead" in str(message)) == (40, True)
        report.shown = "answered; a pattern that needs backtracking: INVALID_CONFIG"
    assert report.bystander.worst_s < LATENCY_S


def test_partial_pushes_stay_within_the_memory_budget(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    half = push_frame(HALF_BYTES)[:-1]
    before = served.metrics()
    with attack(served, f"250 half-sent pushes of {HALF_BYTES} bytes", capsys) as report, ExitStack() as stack:
        for number in range(250):
            client = stack.enter_context(connect(served))
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
    """Connections that were closed for the budget and for the deadline."""
    names = [f"headroom_connections_closed_total:{reason}" for reason in ("held_bytes", "frame_timeout")]
    after = served.metrics()
    for_budget, for_time = (after[name] - before[name] for name in names)
    return for_budget, for_time


def test_connections_per_address_are_limited(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """On loopback the bystander has the same address, so it connects first."""
    with attack(served, "800 connections from one address that allows 300", capsys) as report, ExitStack() as stack:
        crowd = [stack.enter_context(connect(served)) for _ in range(800)]
        assert sum(was_closed(one) for one in crowd[400:]) == 400
        refused = served.metrics()["headroom_connections_refused_total:too_many_from_address"]
        report.shown = f"{refused:.0f} refused"
        assert refused >= 500
    eventually(lambda: served.metrics()["headroom_connections"], lambda count: count <= 1)
    assert report.peak_mb < SLACK_MB


def test_oversize_push_is_answered_after_its_last_byte(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    push = push_frame(OVERSIZE_BYTES)
    with attack(served, f"a push of {OVERSIZE_BYTES // MB} MB", capsys) as report, connect(served) as client:
        client.sendall(push[:-1])
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
        client.sendall(push[-1:])
        reported = client.recv(64)
        code = struct.unpack_from(">h", reported, 13)[0]
        assert code in (117, 118)  # the instance has no subscription, so UNKNOWN_SUBSCRIPTION_ID may come first
        report.shown = f"error {code} behind its last byte"
    assert report.peak_mb < SLACK_MB


def test_secrets_do_not_appear_in_any_output(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    config = served.argv[served.argv.index("--config") + 1]
    with attack(served, "looking for secrets in ps, logs, pages, files and error messages", capsys) as report:
        asyncio.run(push(served))  # a push that cannot be forwarded
        eventually(served.metrics, lambda metrics: metrics["headroom_forward_failures_total"] > 0)
        processes = [served_by := psutil.Process(served.process.pid), *served_by.children(recursive=True)]
        found = {"the log": served.log.read_text(), "the ready line": str(served.addresses)}
        found |= {f"ps {process.pid}": " ".join(process.cmdline()) for process in processes}
        found |= {path: page(served, path) for path in ("/metrics", "/readyz", "/healthz", "/api/v1/status", "/")}
        found["config show"] = command("config", "show", "--config", config)
        for name, value in REFUSED_SECRETS.items():
            found[name] = command("config", "check", "--config", config, **{name: value})
            assert found[name].startswith("headroom: "), found[name]
        files = readable_files(Path(served.argv[served.argv.index("--data") + 1]))
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


async def push(served: Served) -> None:
    client = await WireClient.connect(*served.address, "attacker")
    try:
        subscription = await client.subscription(bytes(16))
        assert await client.push(subscription, 0, metrics_data([1], time.time_ns(), b"")) == 0
    finally:
        client.close()


def page(served: Served, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{served.http}{path}", timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return refused.read().decode()


def readable_files(directory: Path) -> dict[str, str]:
    """The content of the files whose mode lets other users read them; some are deleted while they are listed."""
    found = {}
    for file in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file() and file.stat().st_mode & 0o077:
                found[str(file)] = file.read_bytes().decode("latin-1")
    return found


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
    "an unknown API": frame(999, 0, b""),
    "an API without a broker": frame(0, 9, bytes(50)),
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
                with connect(served) as client:
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


def test_slow_pushes_time_out(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    push = push_frame(100)
    with attack(served, "20 pushes, each a byte at a time", capsys) as report, ExitStack() as stack:
        clients = [stack.enter_context(connect(served)) for _ in range(20)]
        slow, closed = list(clients), 0
        began = time.monotonic()
        for byte in push[:60]:
            for client in list(slow):
                try:
                    client.sendall(bytes([byte]))
                except ConnectionError:
                    slow.remove(client)
            time.sleep(0.1)
        closed = sum(was_closed(client) for client in clients)
        report.shown = f"{closed} closed within {time.monotonic() - began:.0f} s"
        assert closed == 20
    assert report.bystander.worst_s < LATENCY_S


def test_unauthorized_administration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Disabled for all clients, because by default loopback clients are administrators."""
    with victim(tmp_path, administration={"enabled": False}) as served:
        with attack(served, "altering and deleting subscriptions", capsys) as report:
            for _ in range(20):
                reported = alter(served, "theirs", metrics="*")
                assert reported == [(31, "Cluster authorization failed.")]
            report.shown = "CLUSTER_AUTHORIZATION_FAILED"
        with RawConnection(served.kafka) as connection:
            assert requests.decoded(74, 1, connection.ask(74, 1, requests.listing(1, [16]))).config_resources == ()
