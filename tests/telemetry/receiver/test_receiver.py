"""telemetry/receiver/receiver.py: bytes in, a spool record and bytes out."""

from __future__ import annotations

import gzip
import itertools
import struct
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from structlog.testing import capture_logs

from exporters.model import ClientInstance, Connection, RecordKind
from exporters.spool.records import decode_instance, decode_push
from exporters.spool.writer import SpoolFull
from telemetry.decode.decoder import validate_payload
from telemetry.decode.otlp import Limits
from telemetry.receiver.receiver import Answer, TelemetryReceiver
from telemetry.rules.client_instances import Caller
from telemetry.rules.client_metrics import ClientMetrics
from telemetry.rules.java.hash import subscription_id
from telemetry.wire.errors import ErrorCode, ProtocolError
from telemetry.wire.primitives import Reader, write_compact_bytes
from telemetry.wire.telemetry_messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from tests.kit.telemetry_requests import answered, answered_oversize

NOW_MS = 1_700_000_000_000
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
MAX_BYTES = 100
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)
PUSH_NONE = bytes(7)
PUSH_89 = b"\x00\x00\x00\x00\x00\x59\x00"


class Spool:
    """Keeps what is appended, or fails with what it is reported to."""

    def __init__(self) -> None:
        self.records: list[tuple[RecordKind, bytes]] = []
        self.failure: Exception | None = None

    def append(self, kind: RecordKind, body: bytes) -> None:
        if self.failure:
            raise self.failure
        assert isinstance(body, bytes)
        self.records.append((kind, body))


class Sink:
    """A receiver with one subscription to all metrics each second, and a client."""

    def __init__(self, metrics: str = "*") -> None:
        numbers = itertools.count(1)
        self.spool = Spool()
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"))
        self.rules.update("sub", {"metrics": metrics, "interval.ms": "1000"}, NOW_MS)
        self.receiver = TelemetryReceiver(self.rules, append=self.spool.append, telemetry_max_bytes=MAX_BYTES)
        self.now_ms = NOW_MS
        self.connection = CONNECTION

    def caller(self, connection_id: str = "c1", client_id: str | None = "app") -> Caller:
        return Caller(self.connection, client_id, connection_id)

    def answer(self, api_key: int, body: bytes, connection_id: str = "c1", client_id: str | None = "app") -> Answer:
        return answered(self.receiver, api_key, body, self.caller(connection_id, client_id), self.now_ms)

    def oversize(self, body: bytes) -> Answer:
        return answered_oversize(self.receiver, body, self.caller(), self.now_ms)

    def get(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> Answer:
        return self.answer(GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id + b"\x00", connection_id)

    def push(self, payload: bytes | None = b"payload", client_id: str | None = "app", **fields: Any) -> Answer:
        return self.answer(PUSH_TELEMETRY, push_body(payload, **fields), client_id=client_id)


def push_body(
    payload: bytes | None,
    *,
    client_instance_id: bytes = ID,
    subscription: int | None = None,
    terminating: bool = False,
    compression_type: int = 0,
) -> bytes:
    if subscription is None:
        subscription = subscription_id(["*"], 1000, client_instance_id)
    body = bytearray(struct.pack(">16si?b", client_instance_id, subscription, terminating, compression_type))
    if payload is None:
        body += b"\x00"
    else:
        write_compact_bytes(body, payload)
    return bytes(body) + b"\x00"


def code_of(answer: Answer) -> int:
    return Reader(answer.body, 4).int16()


# --- GetTelemetrySubscriptions


def test_a_granted_get_on_the_wire() -> None:
    answer = Sink("métrique,*").get()
    expected = (
        struct.pack(">ih16si", 0, 0, ID, subscription_id(["*"], 1000, ID))
        + b"\x05\x04\x03\x01\x02"
        + struct.pack(">ii?", 1000, MAX_BYTES, True)
        + b"\x02\x02*"
        + b"\x00"
    )
    assert answer.body == expected


def test_the_requested_metrics_leave_out_what_is_covered() -> None:
    sink = Sink("org.apache.kafka.producer.,métrique,org.apache.kafka.")
    reader = Reader(sink.get().body, 26 + 5 + 9)
    assert {reader.compact_string() for _ in range(reader.compact_array_length())} == {"org.apache.kafka.", "métrique"}


@pytest.mark.parametrize(("metrics", "requested"), [("*", [""]), ("org.apache.", ["org.apache."])])
def test_franz_go_is_asked_for_all_metrics_in_the_words_of_the_kip(metrics: str, requested: list[str]) -> None:
    sink = Sink(metrics)
    sink.connection = replace(CONNECTION, software_name="kgo", software_version="v1.22.2")
    reader = Reader(sink.get().body, 26 + 5 + 9)
    assert [reader.compact_string() for _ in range(reader.compact_array_length())] == requested


def test_a_refused_get_carries_nothing_but_the_code() -> None:
    sink = Sink()
    sink.get()
    answer = sink.get()
    assert answer.body == struct.pack(">ih16si", 0, 89, bytes(16), 0) + b"\x01" + bytes(9) + b"\x01\x00"
    assert (answer.after_flush, answer.refusal) == (False, b"")


def test_a_client_without_an_id_gets_one() -> None:
    body = Sink().get(bytes(16)).body
    assert body[6:22] == (2).to_bytes(16, "big")  # 1 is reserved


def test_an_instance_is_recorded_once_on_each_connection() -> None:
    sink = Sink()
    granted = []
    for connection_id in ("c1", "c1", "c2"):
        granted.append(sink.get(connection_id=connection_id))
        sink.now_ms += 1000
    assert [answer.after_flush for answer in granted] == [True, False, True]
    assert code_of(Answer(granted[0].refusal, False, b"")) == 89
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.INSTANCE, RecordKind.INSTANCE]
    assert decode_instance(sink.spool.records[0][1]) == ClientInstance(CONNECTION, "app", ID, NOW_MS)


def test_an_instance_that_is_asked_for_nothing_is_recorded_each_time() -> None:
    sink = Sink("")
    for _ in range(3):
        assert sink.get().after_flush
        sink.now_ms += 1000
    assert [decode_instance(body).seen_at_ms for _, body in sink.spool.records] == [
        NOW_MS,
        NOW_MS + 1000,
        NOW_MS + 2000,
    ]


def test_a_change_of_the_subscriptions_is_no_reason_to_record_an_instance_again() -> None:
    sink = Sink()
    sink.get()
    sink.rules.update("other", {"metrics": "a"}, NOW_MS)
    assert code_of(sink.get()) == 0
    assert len(sink.spool.records) == 1


# --- PushTelemetry


def test_an_accepted_push_is_a_record_and_is_acknowledged_after_the_flush() -> None:
    sink = Sink()
    answer = sink.push(b"payload", terminating=True, compression_type=4)
    assert answer == Answer(PUSH_NONE, after_flush=True, refusal=PUSH_89)
    (kind, record), *rest = sink.spool.records
    push = decode_push(record)
    assert (kind, rest) == (RecordKind.PUSH, [])
    assert (push.connection, push.client_id, push.client_instance_id) == (CONNECTION, "app", ID)
    assert (push.received_at_ms, push.subscription_id) == (NOW_MS, subscription_id(["*"], 1000, ID))
    assert (push.terminating, push.compression_type, push.payload) == (True, 4, b"payload")


@pytest.mark.parametrize("payload", [b"", None])
def test_an_empty_push_is_recorded_as_an_instance_that_was_seen(payload: bytes | None) -> None:
    sink = Sink()
    assert sink.push(payload) == Answer(PUSH_NONE, after_flush=True, refusal=PUSH_89)
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.INSTANCE]
    assert (sink.receiver.counts.empty_pushes, sink.receiver.counts.accepted_bytes) == (1, 0)


def test_a_refused_push_leaves_no_record() -> None:
    sink = Sink()
    answer = sink.push(subscription=1234)
    assert answer == Answer(b"\x00\x00\x00\x00\x00\x75\x00", after_flush=False, refusal=b"")
    assert sink.spool.records == []


def test_the_payload_may_be_as_long_as_the_limit() -> None:
    assert code_of(Sink().push(bytes(MAX_BYTES))) == 0
    assert code_of(Sink().push(bytes(MAX_BYTES + 1))) == 118


def test_what_cannot_be_decompressed_is_not_judged_at_the_door() -> None:
    assert code_of(Sink().push(b"junk", compression_type=4)) == 0


def test_a_client_without_a_client_id_is_recorded_with_an_empty_one() -> None:
    sink = Sink()
    sink.push(client_id=None)
    assert decode_push(sink.spool.records[0][1]).client_id == ""


def test_a_client_id_that_grows_when_it_is_made_utf8_still_fits_a_record() -> None:
    sink = Sink()
    assert code_of(sink.push(client_id="\ufffd" * 32_767)) == 0
    assert decode_push(sink.spool.records[0][1]).client_id == "\ufffd" * 16_383


def test_unknown_tagged_fields_are_ignored() -> None:
    sink = Sink()
    assert code_of(sink.answer(GET_TELEMETRY_SUBSCRIPTIONS, ID + b"\x01\x00\x02ab")) == 0
    assert code_of(sink.answer(PUSH_TELEMETRY, push_body(b"payload")[:-1] + b"\x01\x07\x02ab")) == 0


# --- judged at the receiver


class Judged(Sink):
    """A receiver that decodes before it acknowledges."""

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(points=2)
        self.receiver = TelemetryReceiver(
            self.rules,
            append=self.spool.append,
            telemetry_max_bytes=MAX_BYTES,
            validate_payload=lambda codec, payload: validate_payload(
                codec, payload, max_decompressed_bytes=1000, limits=limits
            ),
        )


def metrics(points: int) -> bytes:
    gauge = Gauge(data_points=[NumberDataPoint(as_int=1)] * points)
    return MetricsData(
        resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[Metric(name="m", gauge=gauge)])])]
    ).SerializeToString()


@pytest.mark.parametrize(
    ("payload", "compression_type", "code"),
    [
        (metrics(2), 0, 0),
        (gzip.compress(metrics(2)), 1, 0),
        (b"", 4, 0),
        (b"junk", 4, 87),
        (b"\xffjunk", 0, 87),
        (metrics(3), 0, 87),
        (gzip.compress(bytes(1001)), 1, 118),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_the_code_of_kafka(
    payload: bytes, compression_type: int, code: int
) -> None:
    sink = Judged()
    assert code_of(sink.push(payload, compression_type=compression_type, terminating=True)) == code
    assert len(sink.spool.records) == (code == 0)
    assert sink.receiver.counts.pushes == {ErrorCode(code): 1}


def test_a_terminating_push_that_was_refused_does_not_lock_the_client_out() -> None:
    sink = Judged()
    assert code_of(sink.push(b"junk", compression_type=4, terminating=True)) == 87
    sink.now_ms += 1000
    assert code_of(sink.push(metrics(1))) == 0


def test_a_fault_of_the_judge_asks_the_client_to_come_back() -> None:
    sink = Sink()

    def broken(compression_type: int, payload: bytes) -> ErrorCode:
        raise KeyError("a bug")

    sink.receiver = TelemetryReceiver(
        sink.rules, append=sink.spool.append, telemetry_max_bytes=MAX_BYTES, validate_payload=broken
    )
    with capture_logs():
        assert sink.push() == Answer(PUSH_89, after_flush=False, refusal=b"")
    assert sink.spool.records == []


# --- faults of ours


@pytest.mark.parametrize("failure", [SpoolFull(), OSError("disk"), KeyError("a bug")])
def test_a_fault_of_ours_asks_the_client_to_come_back(failure: Exception) -> None:
    sink = Sink()
    sink.spool.failure = failure
    with capture_logs():
        assert sink.push(terminating=True) == Answer(PUSH_89, after_flush=False, refusal=b"")
        assert code_of(sink.get(bytes(15) + b"\x07")) == 89
    assert sink.receiver.counts.pushes == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.gets == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.accepted_bytes == 0


def test_a_terminating_push_that_could_not_be_kept_may_come_again() -> None:
    sink = Sink()
    sink.spool.failure = SpoolFull()
    assert code_of(sink.push(terminating=True)) == 89
    sink.spool.failure = None
    assert code_of(sink.push(terminating=True)) == 0


def test_what_was_lost_at_the_flush_may_come_again() -> None:
    sink = Sink()
    assert sink.get().after_flush
    sink.now_ms += 1000
    assert code_of(sink.push(terminating=True)) == 0
    sink.receiver.settled(False)
    assert code_of(sink.push(terminating=True)) == 0
    sink.receiver.settled(True)
    assert code_of(sink.push(terminating=True)) == 42
    sink.now_ms += 1000
    assert sink.get().after_flush  # it is recorded again


def test_an_instance_that_could_not_be_recorded_is_recorded_when_it_comes_again() -> None:
    sink = Sink()
    sink.spool.failure = SpoolFull()
    assert code_of(sink.get()) == 89
    sink.spool.failure = None
    sink.now_ms += 1000
    assert code_of(sink.get()) == 0
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.INSTANCE]


def test_a_bug_is_logged_ever_more_rarely() -> None:
    sink = Sink()
    sink.spool.failure = KeyError("a bug")
    with capture_logs() as logs:
        for _ in range(100):
            sink.push()
            sink.now_ms += 1000
    assert sink.receiver.counts.faults == 100
    assert [entry["faults"] for entry in logs] == [1, 2, 4, 8, 16, 32, 64]


# --- pushes too long to be read


def test_an_oversize_push_is_judged_by_its_head() -> None:
    sink = Sink()
    head = push_body(bytes(1000))[:40]
    codes = [code_of(sink.oversize(head)) for _ in range(2)]
    assert codes == [118, 89]
    stale = push_body(b"", subscription=1234)[:22]
    sink.now_ms += 1000
    assert code_of(sink.oversize(stale)) == 117
    assert sink.spool.records == []
    assert sum(sink.receiver.counts.pushes.values()) == 3


@pytest.mark.interpreted
def test_a_fault_of_ours_with_an_oversize_push_asks_the_client_to_come_back() -> None:
    sink = Sink()

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    sink.receiver.rules.push = broken  # type: ignore[assignment,method-assign] # a fault, injected
    with capture_logs():
        assert code_of(sink.oversize(push_body(b""))) == 89
    assert sink.receiver.counts.faults == 1


def test_an_oversize_push_whose_head_is_not_there_cannot_be_answered() -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.oversize(push_body(b"")[:21])


# --- bytes that are no request


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (GET_TELEMETRY_SUBSCRIPTIONS, b""),
        (GET_TELEMETRY_SUBSCRIPTIONS, ID),
        (GET_TELEMETRY_SUBSCRIPTIONS, ID + b"\x01"),
        (PUSH_TELEMETRY, b""),
        (PUSH_TELEMETRY, push_body(b"payload")[:-1]),
        (PUSH_TELEMETRY, push_body(b"payload")[:-2]),
        (PUSH_TELEMETRY, push_body(b"")[:22] + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_bytes_that_are_no_request(api_key: int, body: bytes) -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.answer(api_key, body)
    assert len(sink.rules.instances) == 0


@settings(max_examples=300)
@given(
    st.sampled_from([GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY]),
    st.lists(st.binary(max_size=60) | st.binary(max_size=20).map(lambda junk: push_body(b"x")[:-1] + junk), max_size=4),
)
def test_junk_is_answered_or_a_protocol_error(api_key: int, bodies: list[bytes]) -> None:
    sink = Sink()
    for body in bodies:
        for ask in (partial(sink.answer, api_key), sink.oversize):
            try:
                answer = ask(body)
            except ProtocolError:
                continue
            assert answer.body in (PUSH_NONE, PUSH_89) or code_of(answer) in list(ErrorCode)
    assert sink.receiver.counts.faults == 0


# --- the rest


def test_what_came_is_counted_by_code() -> None:
    sink = Sink()
    sink.get()
    sink.get()
    sink.push(b"payload")
    sink.push(b"payload")
    none, throttled = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert sink.receiver.counts.gets == {none: 1, throttled: 1}
    assert sink.receiver.counts.pushes == {none: 1, throttled: 1}
    assert sink.receiver.counts.accepted_bytes == len(b"payload")


def test_a_lost_connection_takes_its_instance_with_it() -> None:
    sink = Sink()
    sink.get()
    sink.receiver.disconnected("c1")
    assert len(sink.rules.instances) == 0
