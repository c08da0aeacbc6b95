"""A client that makes up a new instance id for each push pays from its own budget, and a polite neighbour is served."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.subscriptions.java.hash import subscription_id
from tests.attack.victim import attack, victim
from tests.chaos.load import metrics_data
from tests.kit import wire
from tests.kit.serving import PATIENCE_S, Served, eventually, rows

pytestmark = pytest.mark.clickhouse

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
