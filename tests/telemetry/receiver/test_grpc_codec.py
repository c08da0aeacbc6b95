"""telemetry/receiver/grpc_codec.py answers or refuses any bytes, without an internal error."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from exporters.model import RecordKind
from exporters.spool.records import decode_instance, decode_push
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_auth import MessageError, NotAllowedError, Peer
from telemetry.receiver.grpc_codec import GrpcMessages
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics

TRUSTED = Peer("127.0.0.1", 1, None, trusted=True)
DECODE = {RecordKind.PUSH: decode_push, RecordKind.INSTANCE: decode_instance}

texts = st.text(max_size=20) | st.sampled_from(["x" * 255, "\x01" * 4_096, "é" * 16_384, "\U0010ffff" * 8_000])
connections = st.builds(
    pb.Connection,
    client_id=texts | st.none(),
    cluster=texts,
    listener=texts,
    principal=texts,
    client_source_address=st.ip_addresses().map(str) | texts,
    client_source_port=st.integers(0, 70_000),
    client_software_name=texts,
    client_software_version=texts,
    broker_id=st.integers(-(2**31), 2**31 - 1) | st.none(),
    connection_id=texts,
)
requests: st.SearchStrategy[Any] = st.builds(
    pb.PushTelemetryRequest,
    client_instance_id=st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
    subscription_id=st.integers(-(2**31), 2**31 - 1),
    terminating=st.booleans(),
    compression_type=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 4),
    metrics=st.binary(max_size=200),
    connection=connections | st.none(),
) | st.builds(pb.GetTelemetrySubscriptionsRequest, client_instance_id=st.binary(max_size=20), connection=connections)


@settings(max_examples=60, deadline=None)
@given(st.lists(requests.map(lambda request: request.SerializeToString()) | st.binary(max_size=200), max_size=5))
def test_random_messages_are_answered_or_refused_and_records_decode(messages: list[bytes]) -> None:
    records: list[tuple[RecordKind, bytes]] = []
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    receiver = TelemetryReceiver(rules, append=lambda kind, body: records.append((kind, body)), telemetry_max_bytes=100)
    listener_messages = GrpcMessages(receiver, "ours")
    for now_ms, message in enumerate(messages):
        for answer in (listener_messages.get_telemetry_subscriptions, listener_messages.push_telemetry):
            with contextlib.suppress(MessageError), capture_logs():
                answer(message, TRUSTED, now_ms)
            with contextlib.suppress(MessageError, NotAllowedError), capture_logs():
                answer(message, TRUSTED._replace(trusted=False), now_ms)
    assert receiver.counts.faults == 0
    for kind, record in records:
        DECODE[kind](record)
