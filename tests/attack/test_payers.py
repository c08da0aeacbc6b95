"""A client that makes up a new instance id for each push pays from its own budget, and a polite neighbour is served."""

from __future__ import annotations

import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from quota_metrics.kafka.primitives import write_compact_bytes
from telemetry.subscriptions.java.hash import subscription_id
from tests.attack.victim import attack, victim
from tests.chaos.load import metrics_data
from tests.kit import wire
from tests.kit.serving import PATIENCE_S, Served, eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

ZSTD, INTERVAL_MS = 4, 100
POINTS = 50_000
ATTACK_S, POLITE_EVERY_S = 10.0, 0.5
POLITE, HOSTILE = "127.0.0.2", "127.0.0.3"  # without authentication, the source address pays
BURST = 5_000  # new instances of one connection: a quarter of 200 a second for 100 s


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("payers")
    file = directory / "subscriptions.yaml"
    file.write_text(f"all: {{metrics: '*', interval.ms: {INTERVAL_MS}}}\n")
    with victim(directory, subscriptions=str(file)) as running:
        yield running


def many_points() -> bytes:
    """Equal points of one series, compressed to a few hundred bytes."""
    data = MetricsData.FromString(metrics_data([0], 1, b""))
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    for _ in range(POINTS - 1):
        metric.gauge.data_points.add()
    return zstandard.compress(data.SerializeToString(), 19)


def stored_rows(served: Served, client_id: str) -> int:
    [(count,)] = rows(served.sql, f"SELECT count() FROM headroom.client_metrics WHERE client_id = '{client_id}'")
    return int(count)


class Polite(threading.Thread):
    """Pushes one point with an own number every half a second, from an address of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._socket = wire.connect(port, POLITE)
        self._socket.settimeout(PATIENCE_S)
        self._ended = threading.Event()
        self.codes: Counter[int] = Counter()
        self.sent_at: list[float] = []

    def run(self) -> None:
        self._socket.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", b"quiet"))
        ids = wire.subscribed(wire.read_frame(self._socket))
        while not self._ended.wait(POLITE_EVERY_S):
            now_ns = time.time_ns()
            payload = zstandard.compress(metrics_data([len(self.sent_at)], now_ns, b""))
            self._socket.sendall(wire.push(*ids, ZSTD, payload).replace(b"bench", b"quiet", 1))
            self.codes[wire.error_code(wire.read_frame(self._socket))] += 1
            self.sent_at.append(now_ns / 1e9)

    def stop(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S)
        self._socket.close()


def flood(port: int, payload: bytes, seconds: float) -> tuple[Counter[int], int, int]:
    """Pushes as fast as they are answered, each of a new instance. The codes, the longest throttle time, the bytes."""
    codes: Counter[int] = Counter()
    throttle_ms = sent = 0
    connection, end = wire.connect(port, HOSTILE), time.monotonic() + seconds
    connection.settimeout(PATIENCE_S)
    while time.monotonic() < end:
        instance_id = uuid.uuid4().bytes
        push = wire.push(instance_id, subscription_id(["*"], INTERVAL_MS, instance_id), ZSTD, payload)
        connection.sendall(push)
        answer = wire.read_frame(connection)
        codes[wire.error_code(answer)] += 1
        throttle_ms = max(throttle_ms, struct.unpack_from(">i", answer, 9)[0])
        sent += len(push)
    connection.close()
    return codes, throttle_ms, sent


def test_new_instance_for_each_push_is_paid_by_the_source(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    payload = many_points()
    assert len(payload) < 400
    port = served.address[1]
    polite = Polite(port)
    polite.start()
    tried = f"a new instance id for each push, {POINTS:,} points in {len(payload)} bytes of zstd, {ATTACK_S:.0f} s"
    with attack(served, tried, capsys) as report:
        codes, throttle_ms, sent = flood(port, payload, ATTACK_S)
        unfinished = served.ready()
        polite.stop()
        assert set(polite.codes) == {0}
        last = time.monotonic()
        stored = eventually(lambda: stored_rows(served, "quiet"), lambda count: count >= len(polite.sent_at))
        late_s = time.monotonic() - last
        assert stored == len(polite.sent_at)
        report.shown = (
            f"{sent / 1e6:.1f} MB sent, {codes[0]} accepted, {codes[89]} asked to wait up to {throttle_ms} ms;"
            f" the polite client lost 0 of {stored} rows, the last one stored {late_s:.1f} s after it;"
            f" the health page said {unfinished[1].strip()!r}"
        )
    assert set(codes) <= {0, 89}
    assert codes[0] <= BURST + 50 * (ATTACK_S + 1)
    assert throttle_ms > 0 or not codes[89]
    assert stored_rows(served, "bench") == 0


NEIGHBOURS = "127.0.0.4"  # the address of a load balancer, with two clients behind it
NEW_SERIES, SERIES_PUSHES = 50_000, 20
MARK = b"push-0000"
WAITS_AT_MOST_S = 10.0


def new_series() -> bytes:
    """Points of as many series, each with MARK in its attribute."""
    data = MetricsData.FromString(metrics_data([0], time.time_ns(), b""))
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    del metric.gauge.data_points[:]
    for _ in range(NEW_SERIES):
        point = metric.gauge.data_points.add(time_unix_nano=time.time_ns(), as_double=1.0)
        point.attributes.add(key="n").value.string_value = MARK.decode() + uuid.uuid4().hex[:12]
    return data.SerializeToString()


def subscribed_push(client: socket.socket, client_id: bytes, payload: bytes) -> None:
    """As a new instance, whose payload may be of any size."""
    client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", client_id))
    instance_id, subscription = wire.subscribed(wire.read_frame(client))
    body = bytearray(struct.pack(">16siBb", instance_id, subscription, 0, ZSTD))
    write_compact_bytes(body, zstandard.compress(payload, 1))
    client.sendall(wire.request(wire.PUSH, bytes(body) + b"\0", client_id))
    assert wire.error_code(wire.read_frame(client)) == 0


def test_neighbour_behind_the_same_address_waits_for_one_turn(served: Served) -> None:
    template = new_series()
    busy, quiet = (wire.connect(served.address[1], NEIGHBOURS) for _ in range(2))
    for number in range(SERIES_PUSHES):
        subscribed_push(busy, b"busy", template.replace(MARK, b"push-%04d" % number))
    pushed_s = time.monotonic()
    subscribed_push(quiet, b"neighbour", metrics_data([1], time.time_ns(), b""))
    eventually(lambda: stored_rows(served, "neighbour"), bool)
    waited_s = time.monotonic() - pushed_s
    left = SERIES_PUSHES * NEW_SERIES - stored_rows(served, "busy")
    print(f"the neighbour's point was stored after {waited_s:.1f} s, before {left:,} of the other connection")
    assert waited_s < WAITS_AT_MOST_S
    assert left > SERIES_PUSHES * NEW_SERIES / 4
    eventually(lambda: stored_rows(served, "busy"), lambda count: count == SERIES_PUSHES * NEW_SERIES)
    busy.close()
    quiet.close()
