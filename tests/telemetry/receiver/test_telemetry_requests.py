"""telemetry/receiver/telemetry_requests.py: answers, records, payloads validated on receipt, faults, invalid bytes."""

import gzip
import itertools
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from structlog.testing import capture_logs

from exporters.identity import stored_name
from exporters.model import ClientInstance, Connection, RecordKind
from exporters.spool.records import decode_instance, decode_push
from exporters.spool.writer import SpoolFull
from quota_metrics.kafka.primitives import ProtocolError, Reader
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import validate_payload
from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics, PushRequest
from telemetry.subscriptions.payer_budgets import Caller, PayerLimits, Payers, PayerUse
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import read_push_head
from tests.kit.otlp_payloads import resource
from tests.kit.telemetry_requests import answered, subscription_id
from tests.kit.wire import write_compact_bytes

NOW_MS = 1_700_000_000_000
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
MAX_BYTES = 100
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)
PUSH_NONE = bytes(7)
PUSH_89 = b"\x00\x00\x00\x00\x00\x59\x00"


class Spool:
    """Keeps appended records, or raises the given error."""

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

    def __init__(self, metrics: str = "*", payers: Payers | None = None) -> None:
        numbers = itertools.count(1)
        self.spool = Spool()
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"))
        self.rules.replace_all({"sub": {"metrics": metrics, "interval.ms": "1000"}}, NOW_MS)
        self.receiver = TelemetryReceiver(
            self.rules, append=self.spool.append, telemetry_max_bytes=MAX_BYTES, payers=payers
        )
        self.now_ms = NOW_MS
        self.connection = CONNECTION

    def caller(self, connection_id: str = "c1", client_id: str | None = "app") -> Caller:
        return Caller(self.connection, client_id, connection_id)

    def answer(self, api_key: int, body: bytes, connection_id: str = "c1", client_id: str | None = "app") -> Answer:
        return answered(self.receiver, api_key, body, self.caller(connection_id, client_id), self.now_ms)

    def oversize(self, body: bytes) -> Answer:
        return self.receiver.answer_push(PushRequest(*read_push_head(body), self.caller()), None, self.now_ms)

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


def test_granted_get_has_the_documented_bytes() -> None:
    answer = Sink("métrique,*").get()
    expected = (
        struct.pack(">ih16si", 0, 0, ID, subscription_id(["*"], 1000, ID))
        + b"\x05\x04\x03\x01\x02"
        + struct.pack(">ii?", 1000, MAX_BYTES, True)
        + b"\x02\x02*"
        + b"\x00"
    )
    assert answer.body == expected


@pytest.mark.parametrize("software", ["kgo", "dekaf"])
@pytest.mark.parametrize(("metrics", "requested"), [("*", [""]), ("org.apache.", ["org.apache."])])
def test_client_by_the_letter_of_kip_714_receives_an_empty_prefix(
    metrics: str, requested: list[str], software: str
) -> None:
    sink = Sink(metrics)
    sink.connection = replace(CONNECTION, software_name=software, software_version="v1.22.2")
    reader = Reader(sink.get().body, 26 + 5 + 9)
    assert [reader.compact_string() for _ in range(reader.compact_array_length())] == requested


def test_refused_get_contains_only_the_error_code() -> None:
    sink = Sink()
    sink.get()
    answer = sink.get()
    assert answer.body == struct.pack(">ih16si", 0, 89, bytes(16), 0) + b"\x01" + bytes(9) + b"\x01\x00"
    assert (answer.after_flush, answer.refusal) == (False, b"")
    assert sink.receiver.counts.gets == {ErrorCode.NONE: 1, ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}


def test_instance_is_recorded_once_per_connection() -> None:
    sink = Sink()
    granted = []
    for connection_id in ("c1", "c1", "c2"):
        granted.append(sink.get(connection_id=connection_id))
        sink.now_ms += 1000
    assert [answer.after_flush for answer in granted] == [True, False, True]
    assert code_of(Answer(granted[0].refusal)) == 89
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.INSTANCE, RecordKind.INSTANCE]
    assert decode_instance(sink.spool.records[0][1]) == ClientInstance(CONNECTION, "app", ID, NOW_MS)


def test_instance_without_requested_metrics_is_recorded_each_time() -> None:
    sink = Sink("")
    for _ in range(3):
        assert sink.get().after_flush
        sink.now_ms += 1000
    seen_ms = [decode_instance(body).seen_at_ms - NOW_MS for _, body in sink.spool.records]
    assert seen_ms == [0, 1000, 2000]


def test_subscription_change_does_not_record_the_instance_again() -> None:
    sink = Sink()
    sink.get()
    sink.rules.replace_all({**sink.rules.resources, "other": {"metrics": "a"}}, NOW_MS)
    assert code_of(sink.get()) == 0
    assert len(sink.spool.records) == 1


# --- PushTelemetry


def test_accepted_push_is_recorded_and_acknowledged_after_flush() -> None:
    sink = Sink()
    answer = sink.push(b"payload", terminating=True, compression_type=4)
    assert answer == Answer(PUSH_NONE, after_flush=True, refusal=PUSH_89)
    (kind, record), *rest = sink.spool.records
    push = decode_push(record)
    assert (kind, rest) == (RecordKind.PUSH, [])
    assert (push.connection, push.client_id, push.client_instance_id) == (CONNECTION, "app", ID)
    assert (push.received_at_ms, push.subscription_id) == (NOW_MS, subscription_id(["*"], 1000, ID))
    assert (push.terminating, push.compression_type, push.payload) == (True, 4, b"payload")  # not decompressed here
    assert sink.receiver.counts.accepted_bytes == len(b"payload")


@pytest.mark.parametrize("payload", [b"", None])
def test_empty_push_is_recorded_as_an_instance(payload: bytes | None) -> None:
    sink = Sink()
    assert sink.push(payload) == Answer(PUSH_NONE, after_flush=True, refusal=PUSH_89)
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.INSTANCE]
    assert (sink.receiver.counts.empty_pushes, sink.receiver.counts.accepted_bytes) == (1, 0)


def test_refused_push_leaves_no_record() -> None:
    sink = Sink()
    answer = sink.push(subscription=1234)
    assert answer == Answer(b"\x00\x00\x00\x00\x00\x75\x00")
    assert sink.spool.records == []


def test_payload_size_limit_is_inclusive() -> None:
    assert [code_of(Sink().push(bytes(size))) for size in (MAX_BYTES, MAX_BYTES + 1)] == [0, 118]


LONG = "\ufffd" * 32_767


@pytest.mark.parametrize(("client_id", "recorded"), [(None, ""), (LONG, stored_name(LONG))])
def test_null_client_id_is_recorded_as_empty_and_a_long_one_as_prefix_and_hash(
    client_id: str | None, recorded: str
) -> None:
    sink = Sink()
    assert code_of(sink.push(client_id=client_id)) == 0
    assert decode_push(sink.spool.records[0][1]).client_id == recorded


def test_unknown_tagged_fields_are_ignored() -> None:
    sink = Sink()
    assert code_of(sink.answer(GET_TELEMETRY_SUBSCRIPTIONS, ID + b"\x01\x00\x02ab")) == 0
    assert code_of(sink.answer(PUSH_TELEMETRY, push_body(b"payload")[:-1] + b"\x01\x07\x02ab")) == 0


# --- budgets


def test_request_over_the_budget_of_its_payer_is_asked_to_wait() -> None:
    sink = Sink(payers=Payers(PayerLimits(requests=1, instances=0.02, connection_share=1)))
    assert [code_of(sink.get(bytes([n]) * 16)) for n in range(3)] == [0, 0, 89]  # a second of 0.02 new ones, for 100 s
    assert sink.get(b"n" * 16).body[:6] == struct.pack(">ih", 50_000, 89)
    assert code_of(sink.push(client_instance_id=bytes(15) + b"\x07")) == 89
    records = [*sink.spool.records]
    assert [code_of(sink.get(bytes(16))) for _ in range(2)] == [89, 89]
    assert sink.spool.records == records
    assert sink.receiver.payers.worst(1) == [PayerUse("alice", {"instances": 5}, NOW_MS)]
    sink.connection = replace(CONNECTION, principal="bob")
    assert code_of(sink.get(b"b" * 16, connection_id="c2")) == 0


def test_push_over_the_budget_is_refused_with_a_throttle_time_and_not_stored() -> None:
    sink = Sink(payers=Payers(PayerLimits(nbytes=5, connection_share=1)))  # 100 for 20 s
    sink.get()
    assert code_of(sink.push(bytes(MAX_BYTES))) == 0
    sink.now_ms += 1_000  # 5 bytes
    assert code_of(sink.push(bytes(MAX_BYTES))) == 0
    records = [*sink.spool.records]
    sink.now_ms += 1_000
    assert sink.push().body == struct.pack(">ihB", 18_200, 89, 0)  # 90 bytes are owed
    assert code_of(sink.oversize(push_body(bytes(MAX_BYTES + 1)))) == 89
    assert sink.spool.records == records
    sink.now_ms += 18_200
    assert code_of(sink.push()) == 0
    assert sink.receiver.counts.refused_pushes[ErrorCode.THROTTLING_QUOTA_EXCEEDED] == 2


# --- payloads validated on receipt


def validating(validate: Callable[[int, bytes], ErrorCode] | None = None) -> Sink:
    sink = Sink()
    decodes = partial(validate_payload, max_decompressed_bytes=1000, limits=PayloadLimits(points=2))
    sink.receiver = TelemetryReceiver(
        sink.rules,
        append=sink.spool.append,
        telemetry_max_bytes=MAX_BYTES,
        validate_payload=decodes if validate is None else validate,
    )
    return sink


def metrics(points: int) -> bytes:
    return MetricsData(resource_metrics=[resource(points)]).SerializeToString()


@pytest.mark.parametrize(
    ("payload", "compression_type", "code"),
    [
        (metrics(2), 0, 0),
        (gzip.compress(metrics(2), mtime=0), 1, 0),
        (b"", 4, 0),
        (b"junk", 4, 87),
        (b"\xffjunk", 0, 87),
        (metrics(3), 0, 87),
        (gzip.compress(bytes(1001), mtime=0), 1, 118),
    ],
)
def test_invalid_payload_is_refused_with_kafkas_code(payload: bytes, compression_type: int, code: int) -> None:
    sink = validating()
    assert code_of(sink.push(payload, compression_type=compression_type, terminating=True)) == code
    assert len(sink.spool.records) == (code == 0)
    assert sink.receiver.counts.pushes == {ErrorCode(code): 1}


def test_refused_terminating_push_does_not_terminate_the_instance() -> None:
    sink = validating()
    assert code_of(sink.push(b"junk", compression_type=4, terminating=True)) == 87
    sink.now_ms += 1000
    assert code_of(sink.push(metrics(1))) == 0


def broken(*_: object, **__: object) -> ErrorCode:
    raise KeyError("a bug")


def test_validator_exception_is_answered_with_89() -> None:
    sink = validating(broken)
    with capture_logs():
        assert sink.push() == Answer(PUSH_89)
    assert sink.spool.records == []


# --- internal errors


@pytest.mark.parametrize("failure", [SpoolFull(), OSError("disk"), KeyError("a bug")])
def test_append_failure_is_answered_with_89(failure: Exception) -> None:
    sink = Sink()
    sink.spool.failure = failure
    with capture_logs():
        assert sink.push(terminating=True) == Answer(PUSH_89)
        assert code_of(sink.get(bytes(15) + b"\x07")) == 89
    assert sink.receiver.counts.pushes == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.gets == {ErrorCode.THROTTLING_QUOTA_EXCEEDED: 1}
    assert sink.receiver.counts.accepted_bytes == 0


def test_unstored_terminating_push_and_unrecorded_instance_may_be_retried() -> None:
    sink = Sink()
    sink.spool.failure = SpoolFull()
    assert [code_of(answer) for answer in (sink.get(), sink.push(terminating=True))] == [89, 89]
    sink.spool.failure = None
    assert code_of(sink.push(terminating=True)) == 0
    sink.now_ms += 1000
    assert code_of(sink.get()) == 0
    assert [kind for kind, _ in sink.spool.records] == [RecordKind.PUSH, RecordKind.INSTANCE]


def test_push_lost_by_failed_flush_may_be_retried() -> None:
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


def test_repeated_faults_are_logged_with_backoff() -> None:
    sink = Sink()
    sink.spool.failure = KeyError("a bug")
    with capture_logs() as logs:
        for _ in range(100):
            sink.push()
            sink.now_ms += 1000
    assert sink.receiver.counts.faults == 100
    assert [entry["faults"] for entry in logs] == [1, 2, 4, 8, 16, 32, 64]


# --- pushes too large to buffer


def test_oversize_push_is_decided_by_its_header() -> None:
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
def test_internal_error_on_oversize_push_is_answered_with_89() -> None:
    sink = Sink()
    sink.receiver.rules.push = broken  # type: ignore[assignment,method-assign] # a fault, injected
    with capture_logs():
        assert code_of(sink.oversize(push_body(b""))) == 89
    assert sink.receiver.counts.faults == 1


def test_oversize_push_with_truncated_header_raises_protocol_error() -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.oversize(push_body(b"")[:21])


# --- invalid requests


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
def test_malformed_body_raises_protocol_error(api_key: int, body: bytes) -> None:
    sink = Sink()
    with pytest.raises(ProtocolError):
        sink.answer(api_key, body)
    assert len(sink.rules.instances) == 0
