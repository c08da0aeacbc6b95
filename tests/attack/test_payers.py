"""Two clients behind one address, of which one is busy: the other waits for one turn."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator

import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from tests.attack.victim import victim
from tests.chaos.load import metrics_data
from tests.kit import wire
from tests.kit.serving import Served, eventually, rows
from tests.kit.wire import write_compact_bytes

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

ZSTD, INTERVAL_MS = 4, 100


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("payers")
    file = directory / "subscriptions.yaml"
    file.write_text(f"all: {{metrics: '*', interval.ms: {INTERVAL_MS}}}\n")
    with victim(directory, subscriptions=str(file)) as running:
        yield running


def stored_rows(served: Served, client_id: str) -> int:
    [(count,)] = rows(served.sql, f"SELECT count() FROM headroom.client_metrics WHERE client_id = '{client_id}'")
    return int(count)


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
