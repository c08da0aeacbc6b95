"""Spool to an OTLP endpoint that is unavailable, refuses, rejects points or restarts; and to Headroom's receivers."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from exporters.model import RecordKind
from exporters.otlp.grpc_sender import GrpcSender
from exporters.otlp.http_sender import HttpSender
from exporters.otlp.outcome import OtlpSender
from exporters.spool.mirror import Mirror, MirrorReader
from exporters.spool.reader import SpoolReader
from exporters.spool.records import push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolWriter
from headroom.demo.processes import free_ports
from telemetry.forward.forwarder import Forwarder, LostPoint, LostPush, Stopped
from telemetry.forward.selection import ForwardSelection
from tests.kit.grpc_servers import in_loop
from tests.kit.otlp_endpoints import ENDPOINTS, Received, Refusal
from tests.kit.otlp_receivers import BEARER, opened
from tests.telemetry.decode.payloads import CONNECTION, counter, gauge, number, payload

MIB = 1 << 20


class Spool:
    """A spool with a mirror, and no storage process."""

    def __init__(self, directory: Path) -> None:
        self._writer = SpoolWriter(directory / "spool", "pushes", segment_bytes=4 * MIB, max_bytes=64 * MIB)
        self._mirror = Mirror(directory / "mirror", MIB)
        self._directory = directory
        self.first = SpoolReader(directory / "spool", self._mirror.link)

    def reader(self) -> MirrorReader:
        return MirrorReader(self._directory / "mirror")

    def push(self, value: float, name: str = "g") -> None:
        self.record(payload(gauge(number(as_double=value), name=name)))

    def record(self, body: bytes) -> None:
        origin = push_origin(bytes(range(16)), 7, False, 0, sender_bytes(CONNECTION, "app-1"))
        self._writer.append(RecordKind.PUSH, push_record(1, origin, body))
        self._writer.flush()

    def end_segment(self) -> None:
        """Lets the first reader finish all records, so that only the mirror holds segments."""
        self._writer.close()
        while (batch := self.first.next_batch(100, MIB)) is not None:
            self.first.commit(batch)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(tmp_path)
    spool.push(0)
    assert spool.first.next_batch(1, MIB) is not None  # which links the segment
    return spool


def forwarder(
    reader: MirrorReader, protocol: str, address: str, headers: dict[str, str] | None = None, **options: Any
) -> Forwarder:
    sender: OtlpSender
    if protocol == "grpc":
        sender = GrpcSender(address, tls=None, headers=headers or {}, gzip=True, timeout_s=20)
    else:
        url = f"http://{address}/v1/metrics"
        sender = HttpSender(url, tls_files={}, headers=headers or {}, compression="gzip", timeout_s=20)
    defaults: dict[str, Any] = {"max_lag_bytes": MIB, "is_stopping": lambda: False}
    return Forwarder(reader, sender, ForwardSelection(), max_decompressed_bytes=MIB, **defaults | options)


def drain(sending: Forwarder) -> None:
    while sending.step():
        pass


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_recovered_endpoint_receives_every_point_once(spool: Spool, protocol: str) -> None:
    [port] = free_ports(1)
    received, failed = Received(), threading.Event()
    sending = forwarder(spool.reader(), protocol, f"127.0.0.1:{port}", on_failure=failed.set)
    for value in range(1, 30):
        spool.push(value)
    thread = threading.Thread(target=drain, args=(sending,))
    thread.start()
    assert failed.wait(60)
    fault = sending.fault
    assert fault is not None
    with ENDPOINTS[protocol](received, port):
        thread.join(60)
        assert not thread.is_alive()
    assert received.values() == list(range(30))
    assert (sending.counts.points, sending.counts.pushes, sending.fault) == (30, 30, None)
    assert sending.failures >= 1


REFUSES_EVERYTHING = [
    *(("grpc", code) for code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "INVALID_ARGUMENT")),
    *(("grpc", code) for code in ("INTERNAL", "UNKNOWN")),
    *(("http", code) for code in (200, 301, 307, 400, 401, 402, 403, 404, 405, 407, 413, 421, 500, 511)),
]


@pytest.mark.parametrize(("protocol", "code"), REFUSES_EVERYTHING)
def test_nothing_is_lost_at_an_endpoint_that_refuses_everything(spool: Spool, protocol: str, code: str | int) -> None:
    received, failures = Received(), threading.Semaphore(0)
    received.refuses_all = Refusal(code)
    for value in range(1, 40):
        spool.push(value)
    with ENDPOINTS[protocol](received) as address:
        reader = spool.reader()
        sending = forwarder(reader, protocol, address, on_failure=failures.release)
        thread = threading.Thread(target=drain, args=(sending,))
        thread.start()
        while (fault := sending.fault) is None or received.refused_empty < 2:
            assert failures.acquire(timeout=60)
        assert str(code) in fault
        assert reader.buffered()[1] > 0, "the alert about forwarding looks at what waits"
        received.refuses_all = None
        thread.join(60)
        assert not thread.is_alive()
    assert received.values() == list(range(40))
    assert (sending.counts.lost_points.total(), sending.counts.lost_pushes.total(), sending.fault) == (0, 0, None)
    assert received.refused < 40, "it backs off"


@pytest.mark.parametrize(
    ("protocol", "code"), [("grpc", "PERMISSION_DENIED"), ("http", 403), ("http", 413), ("http", 500)]
)
@pytest.mark.parametrize("others", [0, 1, 9])
@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_push_that_is_refused_is_lost(
    spool: Spool, protocol: str, code: str | int, others: int, is_first: bool
) -> None:
    received = Received()
    received.refuses_metric, received.refuses_with = "poison", Refusal(code)
    with ENDPOINTS[protocol](received) as address:
        sending = forwarder(spool.reader(), protocol, address)
        drain(sending)  # that of the fixture
        spool.push(-1, "poison" if is_first else "g")
        for value in range(others):
            spool.push(value)
        spool.push(-1, "g" if is_first else "poison")
        drain(sending)
    assert received.values() == sorted([-1, 0, *range(others)])
    assert (sending.counts.lost_points[LostPoint.REFUSED], sending.fault) == (1, None)


@pytest.mark.parametrize("pushes", [1, 7])
def test_a_receiver_that_accepts_no_deltas_gets_the_other_points(spool: Spool, pushes: int) -> None:
    received = Received()
    received.refuses_deltas = True
    histogram = Metric(name="h")
    histogram.histogram.data_points.add()
    histogram.histogram.aggregation_temporality = 1  # type: ignore[assignment]
    for _ in range(pushes):
        cumulative = counter(number(as_double=2), temporality=2)
        spool.record(payload(gauge(number(as_double=1)), counter(number(as_double=1)), cumulative, histogram))
    spool.record(payload(counter(number(as_double=1), number(as_double=1))))
    with ENDPOINTS["http"](received) as address:
        sending = forwarder(spool.reader(), "http", address)
        drain(sending)
    assert received.values() == [0, *[1] * pushes]
    assert sorted(metric.name for metric in received.metrics()) == ["g"] * (pushes + 1) + ["s"] * pushes
    assert (sending.counts.points, sending.counts.pushes) == (1 + 2 * pushes, 2 + pushes)
    assert (sending.counts.lost_points[LostPoint.REFUSED], sending.fault) == (2 * pushes + 2, None)


@pytest.mark.parametrize(("protocol", "max_bytes"), [("http", 600), ("http", 5_000), ("grpc", 100_000)])
def test_pushes_are_divided_until_an_endpoint_with_a_limit_of_size_accepts_them(
    spool: Spool, protocol: str, max_bytes: int
) -> None:
    received = Received()
    received.max_bytes = max_bytes
    for first in range(0, 300, 100):
        points = range(first, first + 100)
        spool.record(payload(*(gauge(number(as_double=n), name=f"{n % 7}" * (max_bytes // 60)) for n in points)))
    with ENDPOINTS[protocol](received) as address:
        sending = forwarder(spool.reader(), protocol, address)
        drain(sending)
    assert received.values() == sorted([0, *range(300)])
    assert (sending.counts.points, sending.counts.lost_points.total(), sending.fault) == (301, 0, None)


@pytest.mark.parametrize("place", [0, 4, 9])
def test_an_endpoint_that_refuses_empty_requests_gets_all_but_the_poisoned_push(spool: Spool, place: int) -> None:
    received = Received()
    received.refuses_metric, received.refuses_empty = "poison", True
    for value in range(1, 10):
        spool.push(value, "poison" if value == place else "g")
    with ENDPOINTS["http"](received) as address:
        sending = forwarder(spool.reader(), "http", address)
        drain(sending)
    assert received.values() == [value for value in range(10) if value != place or not place]
    assert sending.counts.lost_points[LostPoint.REFUSED] == bool(place)


def test_rejected_points_and_unreadable_pushes_are_counted(spool: Spool) -> None:
    received = Received()
    received.answers.append(1)
    spool.push(1)
    spool.record(b"\xff\xff\xff")
    spool.record(b"")  # an empty push, as an old librdkafka sends it
    with ENDPOINTS["http"](received) as address:
        reader = spool.reader()
        sending = forwarder(reader, "http", address)
        drain(sending)
        assert (sending.counts.points, sending.counts.pushes) == (1, 2)
        assert sending.counts.lost_points[LostPoint.REJECTED] == 1
        assert sending.counts.lost_pushes[LostPush.UNREADABLE] == 1
        reader.close()
        again = forwarder(spool.reader(), "http", address)
        assert again.counts == sending.counts, "counts outlive the process, as the position does"
        drain(again)
    assert len(received.requests) == 1


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_messages_of_accepted_requests_are_logged_ever_more_rarely(spool: Spool, protocol: str) -> None:
    received = Received()
    received.message = "{x}\n\x1b[2J" + "a" * 900
    received.answers.append(1 << 40)  # more than there are
    with ENDPOINTS[protocol](received) as address, structlog.testing.capture_logs() as logs:
        sending = forwarder(spool.reader(), protocol, address)
        for value in range(5):
            drain(sending)
            spool.push(value)
    assert [entry["total"] for entry in logs] == [1, 2, 4]
    assert {entry["cause"] for entry in logs} == {"{x} \\x1b[2J" + "a" * 189}
    assert (sending.counts.points, sending.counts.lost_points[LostPoint.REJECTED]) == (4, 1)


def test_unavailable_receiver_drops_pushes_beyond_the_lag_limit(spool: Spool) -> None:
    received = Received()
    received.answers.extend([Refusal(503, 0)] * 3)
    for value in range(1, 5):
        spool.push(value)
    spool.end_segment()
    with ENDPOINTS["http"](received) as address:
        sending = forwarder(spool.reader(), "http", address, max_lag_bytes=10)
        drain(sending)
        assert sending.counts.lost_pushes[LostPush.LAG] == 5
        spool.push(9)
        assert spool.first.next_batch(1, MIB) is not None
        drain(sending)
    assert received.values() == [9]


def test_dropping_a_segment_ends_its_retries(spool: Spool) -> None:
    received = Received()
    received.answers.extend([Refusal(503, 0)] * 2)
    with ENDPOINTS["http"](received) as address:
        sending = forwarder(spool.reader(), "http", address, max_lag_bytes=10, on_failure=spool.end_segment)
        drain(sending)
    assert sending.counts.lost_pushes[LostPush.LAG] == 1
    assert (received.requests, sending.counts.pushes) == ([], 0)


def test_unaccepted_push_is_sent_after_restart(spool: Spool) -> None:
    received = Received()
    received.answers.append(Refusal(503))
    with ENDPOINTS["http"](received) as address:
        reader = spool.reader()
        with pytest.raises(Stopped):
            forwarder(reader, "http", address, is_stopping=lambda: received.refused > 0).step()
        reader.close()
        drain(forwarder(spool.reader(), "http", address))
    assert received.values() == [0]


@pytest.mark.parametrize(("protocol", "code"), [("grpc", "RESOURCE_EXHAUSTED"), ("http", 503)])
def test_a_delay_of_nothing_is_no_busy_loop(spool: Spool, protocol: str, code: str | int) -> None:
    received = Received()
    received.refuses_all = Refusal(code, 0)
    with ENDPOINTS[protocol](received) as address:
        end_s = time.monotonic() + 0.5
        with pytest.raises(Stopped):
            forwarder(spool.reader(), protocol, address, is_stopping=lambda: time.monotonic() > end_s).step()
    assert received.refused <= 5


@pytest.mark.parametrize("protocol", ENDPOINTS)
@in_loop
async def test_headroom_receivers_keep_the_client_identity(spool: Spool, tmp_path: Path, protocol: str) -> None:
    async with opened(tmp_path / "receiver") as receivers:
        sending = forwarder(spool.reader(), protocol, getattr(receivers, protocol), BEARER)
        await asyncio.to_thread(drain, sending)
        [push] = receivers.pushes()
    assert (push.client_id, push.client_instance_id) == ("app-1", bytes(range(16)))
    assert (push.connection.principal, push.connection.cluster) == ("alice", "prod")
