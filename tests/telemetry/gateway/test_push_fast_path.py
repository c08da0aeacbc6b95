"""The fast path of a push gives the same answers and records as the full path, for any input."""

import struct
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import RecordKind
from exporters.spool.records import decode_push
from quota_metrics.kafka.primitives import ProtocolError, write_uvarint
from telemetry.gateway.connection import ConnectionLimits
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from tests.kit.telemetry_requests import subscription_id
from tests.telemetry.gateway.dialogue import Both

NOW_MS = 1_700_000_000_000
IDS = [b"\x07" * 16, b"\x08" * 16]
CLOSED = b"closed"
SUBSCRIPTIONS = [subscription_id(["*"], 1000, client_instance_id) for client_instance_id in IDS]


class Sent(NamedTuple):
    """A push as a client might send it, and the action that follows."""

    instance: int = 0
    payload: bytes = b"p" * 200
    client_id: bytes | None = b"app"
    stale: bool = False
    terminating: bool = False
    compression_type: int = 4
    header_tags: bytes = b"\x00"
    tags: bytes = b"\x00"
    longer_by: int = 0  # added to the stated length of the payload
    correlation_id: int = 1
    pause_ms: int = 1000
    flush: bool | None = True  # None: not before the next push

    def frame(self) -> bytes:
        subscription = 99 if self.stale else SUBSCRIPTIONS[self.instance]
        client_id = b"\xff\xff" if self.client_id is None else struct.pack(">h", len(self.client_id)) + self.client_id
        body = bytearray(struct.pack(">hhi", 72, 0, self.correlation_id) + client_id + self.header_tags)
        body += struct.pack(">16si?b", IDS[self.instance], subscription, self.terminating, self.compression_type)
        write_uvarint(body, max(len(self.payload) + 1 + self.longer_by, 0))
        body += self.payload + self.tags
        return struct.pack(">i", len(body)) + body


class Way(Both):
    """A connection with its own receiver; `short` allows the fast path."""

    def __init__(self, short: bool, limits: ConnectionLimits | None = None) -> None:
        self.records: list[tuple[RecordKind, bytes]] = []
        self.short = short
        self.taken = 0
        rules = ClientMetrics(new_id=lambda: bytes(16))
        rules.replace_all({"all": {"metrics": "*", "interval.ms": "1000"}}, NOW_MS)
        self.telemetry = TelemetryReceiver(
            rules, append=lambda *record: self.records.append(record), telemetry_max_bytes=20_000
        )
        super().__init__(limits, receiver=self.telemetry)
        self.now_ms = NOW_MS

    def send(self, data: bytes, flush: bool | None = True) -> bytes:
        if not self.short:
            self.connection._known_pushes.forget()
        self.taken += self.connection._known_pushes.match(data, 0) is not None
        try:
            self.client(data)
        except ProtocolError:
            return CLOSED
        return b"" if flush is None else self.answers(flush)

    def answers(self, ok: bool) -> bytes:
        """Those that waited for the flush among them."""
        out = self.take_client()
        return out + self.flush(ok) if self.connection.unflushed else out


payloads = st.sampled_from(
    [b"", b"x", b"y" * 126, b"z" * 127, b"\x80" * 300, b"k" * 16_383, b"l" * 16_384, b"m" * 20_001]
)
sent = st.builds(
    Sent,
    instance=st.sampled_from([0, 0, 0, 1]),
    payload=payloads,
    client_id=st.sampled_from([b"app", b"app", b"other", b"", None, b"\xff"]),
    stale=st.sampled_from([False, False, True]),
    terminating=st.sampled_from([False, False, False, True]),
    compression_type=st.sampled_from([4, 4, 0, 9]),
    header_tags=st.sampled_from([b"\x00", b"\x00", b"\x01\x05\x01a"]),
    tags=st.sampled_from([b"\x00", b"\x00", b"\x01\x05\x01a"]),
    longer_by=st.sampled_from([0, 0, 0, 0, -1, 1]),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    pause_ms=st.sampled_from([1000, 1000, 10]),
    flush=st.sampled_from([True, True, False, None]),
)


@settings(max_examples=100)
@given(st.lists(sent | st.just(Sent()), max_size=12))
def test_fast_and_full_path_produce_equal_answers_and_records(pushes: list[Sent]) -> None:
    short, long = Way(True), Way(False)
    for push in pushes:
        answer = short.send(push.frame(), push.flush)
        assert answer == long.send(push.frame(), push.flush)
        if answer == CLOSED:
            break
        for way in (short, long):
            way.now_ms += push.pause_ms
    else:
        assert short.answers(True) == long.answers(True)
    assert short.records == long.records
    assert short.telemetry.counts == long.telemetry.counts


@pytest.mark.parametrize("nbytes", [127, 500, 3000, 16_383, 20_000])
def test_second_push_takes_the_fast_path(nbytes: int) -> None:
    way = Way(True)
    for number in range(3):
        frame = Sent(payload=bytes([number]) * nbytes, correlation_id=number).frame()
        assert way.send(frame) == struct.pack(">iixihx", 12, number, 0, 0)
        way.now_ms += 1000
    assert way.taken == 2
    assert [decode_push(body).payload[:1] for _, body in way.records] == [b"\x00", b"\x01", b"\x02"]
    assert way.connection._known_pushes.payload == b""  # an idle connection keeps none


def test_refused_push_keeps_its_code_when_flush_fails() -> None:
    way = Way(True)
    way.send(Sent().frame())
    way.now_ms += 1000
    assert way.send(Sent(payload=bytes(20_001)).frame(), False)[13:15] == b"\x00\x76"
    way.now_ms += 1000
    assert way.send(Sent().frame(), False)[13:15] == b"\x00\x59"
    assert way.taken == 2


@settings(max_examples=50)
@given(st.lists(sent | st.just(Sent()) | st.just(Sent(instance=1)), min_size=2, max_size=8), st.integers(0, 400))
def test_several_pushes_in_one_read_are_answered_as_one_by_one(pushes: list[Sent], cut: int) -> None:
    short, long = Way(True), Way(False)
    data = b"".join(push.frame() for push in pushes)
    cut = len(data) - min(cut, len(data))
    for way in (short, long):
        for instance in (0, 1):
            way.send(Sent(instance=instance).frame())
        way.now_ms += 1000
    answer = short.send(data[:cut])
    assert answer == long.send(data[:cut])
    if answer != CLOSED:
        assert short.send(data[cut:]) == long.send(data[cut:])
    assert short.records == long.records
    assert short.telemetry.counts == long.telemetry.counts


def test_heads_that_all_connections_remember_are_limited() -> None:
    limits = ConnectionLimits()
    ways = [Way(True, limits) for _ in range(2)]
    for way in ways:
        for number in range(300):
            way.send(Sent(client_id=f"app-{number}".encode()).frame())
            way.now_ms += 1000
    assert limits.known_heads.count == 2 * 256
    ways[0].connection.closed()
    assert limits.known_heads.count == 256
    limits.known_heads.count = 65_536  # all are taken: the last head is remembered nevertheless
    ways[0].send(Sent().frame())
    ways[0].now_ms += 1000
    ways[0].send(Sent().frame())
    assert ways[0].taken == 1
