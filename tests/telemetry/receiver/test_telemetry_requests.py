"""telemetry/receiver/telemetry_requests.py: bytes in, a spool record and bytes out."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from exporters.identity import stored_name
from exporters.model import ClientInstance, RecordKind
from exporters.spool.records import decode_instance, decode_push
from quota_metrics.kafka.primitives import Reader
from telemetry.receiver.telemetry_requests import Answer
from telemetry.subscriptions.payer_budgets import PayerLimits, Payers, PayerUse
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from telemetry.wire.errors import ErrorCode
from tests.kit.telemetry_requests import subscription_id
from tests.telemetry.receiver.sink import (
    CONNECTION,
    ID,
    MAX_BYTES,
    NOW_MS,
    PUSH_89,
    PUSH_NONE,
    Sink,
    code_of,
    push_body,
)

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


@pytest.mark.parametrize(("metrics", "requested"), [("*", [""]), ("org.apache.", ["org.apache."])])
def test_franz_go_receives_an_empty_prefix_for_all_metrics(metrics: str, requested: list[str]) -> None:
    sink = Sink(metrics)
    sink.connection = replace(CONNECTION, software_name="kgo", software_version="v1.22.2")
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
