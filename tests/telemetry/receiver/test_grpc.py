"""The gRPC server over real sockets: the protocol's rules, who may state an identity, late flushes, hostile calls."""

import asyncio
import contextlib
import socket
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from exporters.model import ANONYMOUS, UNKNOWN, ClientInstance, Connection, RecordKind
from exporters.spool.records import decode_instance, decode_push
from quota_metrics.kafka.primitives import Reader
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_auth import MessageError, NotAllowedError, Peer
from telemetry.receiver.grpc_codec import SERVICE, GrpcMessages
from telemetry.receiver.grpc_server import GrpcTls
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from telemetry.wire.errors import ErrorCode
from tests.kit.certificates import CertificateAuthority
from tests.kit.grpc_servers import CLUSTER, MAX_BYTES, START_MS, TOKEN, Calls, OpenReceiver, in_loop, opened
from tests.kit.telemetry_requests import answered, subscription_id
from tests.kit.wire import write_compact_bytes

ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
WIRE_ID = bytes.fromhex("a3f1a2b4c5e64f708192a3b4c5d6e7f8")
BROKERS_CLIENT: dict[str, Any] = {
    "client_id": "app",
    "cluster": "theirs",
    "listener": "SASL_SSL",
    "principal": "alice",
    "client_source_address": "10.1.2.3",
    "client_source_port": 4711,
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "broker_id": 0,
    "connection_id": "10.0.0.1:9092-10.1.2.3:4711-0-7",
}
FACTS = Connection("theirs", "SASL_SSL", "alice", "10.1.2.3", 4711, "apache-kafka-java", "4.3.1", 0)


def get(client_instance_id: bytes = ID, **connection: Any) -> pb.GetTelemetrySubscriptionsRequest:
    request = pb.GetTelemetrySubscriptionsRequest(client_instance_id=client_instance_id)
    if connection:
        request.connection.CopyFrom(pb.Connection(**connection))
    return request


def push(metrics: bytes = b"payload", client_instance_id: bytes = ID, **fields: Any) -> pb.PushTelemetryRequest:
    defaults = {"subscription_id": subscription_id(["*"], 1000, client_instance_id)}
    return pb.PushTelemetryRequest(client_instance_id=client_instance_id, metrics=metrics, **defaults | fields)


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as reported:
        await call
    return reported.value.code()


# --- protocol rules

SEQUENCE: list[tuple[int, dict[str, Any] | None]] = [  # ms later, a get or the fields of a push
    (0, None),
    (0, None),
    (10, {"subscription_id": 7}),
    (10, None),
    (1_000, {"compression_type": 9}),
    (10, None),
    (1_000, {"metrics": bytes(MAX_BYTES + 1)}),
    (10, {}),
    (1_000, {}),
    (10, {}),
    (1_000, {"metrics": b"", "compression_type": 4}),
    (1_000, {"terminating": True}),
    (1_000, {}),
    (1_000, {"client_instance_id": bytes(16)}),
    (1_000, {"client_instance_id": bytes(15) + b"\1"}),
]


@in_loop
async def test_answers_match_the_kafka_protocol() -> None:
    async with opened() as receiver, receiver.trusted() as caller:
        codes = []
        for later_ms, fields in SEQUENCE:
            receiver.now_ms += later_ms
            if fields is None:
                code = (await caller.get(get())).error_code
                key, body = GET_TELEMETRY_SUBSCRIPTIONS, bytearray(WIRE_ID)
            else:
                code = await caller.push(push(**fields))
                request = push(**{"client_instance_id": WIRE_ID, **fields})
                head = (request.client_instance_id, request.subscription_id, request.terminating)
                key, body = PUSH_TELEMETRY, bytearray(struct.pack(">16si?b", *head, request.compression_type))
                write_compact_bytes(body, request.metrics)
            on_the_wire = Caller(FACTS, "app", "wire")
            answer = answered(receiver.telemetry, key, bytes(body) + b"\x00", on_the_wire, receiver.now_ms)
            codes.append((code, Reader(answer.body, 4).int16()))
        assert [ours for ours, _ in codes] == [wire for _, wire in codes]
        assert [ours for ours, _ in codes] == [0, 89, 117, 0, 76, 0, 118, 89, 0, 89, 0, 0, 42, 42, 42]


@pytest.mark.parametrize("software", ["apache-kafka-java", "kgo"])
@in_loop
async def test_granted_get_has_all_fields(software: str) -> None:
    """franz-go receives an empty prefix for all metrics."""
    async with opened() as receiver, receiver.trusted() as caller:
        granted = await caller.get(get(b"", **BROKERS_CLIENT | {"client_software_name": software}))
        assert granted == pb.GetTelemetrySubscriptionsResponse(
            client_instance_id=(2).to_bytes(16, "big"),
            subscription_id=subscription_id(["*"], 1000, granted.client_instance_id),
            accepted_compression_types=[4, 3, 1, 2],
            push_interval_ms=1000,
            telemetry_max_bytes=MAX_BYTES,
            delta_temporality=True,
            requested_metrics=["" if software == "kgo" else "*"],
        )


# --- identity of the client


@in_loop
async def test_identity_stated_by_authenticated_caller_is_recorded() -> None:
    connection = pb.Connection(**BROKERS_CLIENT)
    async with opened() as receiver, receiver.trusted() as caller:
        await caller.get(get(**BROKERS_CLIENT))
        assert await caller.push(push(b"payload", compression_type=1, terminating=True, connection=connection)) == 0
        (seen, instance), (pushed, record) = receiver.records
        assert (seen, pushed) == (RecordKind.INSTANCE, RecordKind.PUSH)
        assert decode_instance(instance) == ClientInstance(FACTS, "app", ID, START_MS)
        kept = decode_push(record)
        assert (kept.connection, kept.client_id, kept.client_instance_id) == (FACTS, "app", ID)
        assert (kept.received_at_ms, kept.terminating, kept.compression_type) == (START_MS, True, 1)
        assert kept.payload == b"payload"


@in_loop
async def test_omitted_identity_fields_have_kafka_defaults() -> None:
    async with opened() as receiver, receiver.trusted() as caller:
        await caller.get(get(client_source_address="::1"))
        ((_, record),) = receiver.records
        expected = Connection(CLUSTER, "", ANONYMOUS, "::1", 0, UNKNOWN, UNKNOWN, -1)
        assert decode_instance(record).connection == expected


@in_loop
async def test_caller_without_stated_identity_is_the_client() -> None:
    async with opened() as receiver, receiver.caller() as caller:
        assert await caller.push(push()) == 0
        ((_, record),) = receiver.records
        connection = decode_push(record).connection
        port = connection.source_port
        assert connection == Connection(CLUSTER, "GRPC", ANONYMOUS, "127.0.0.1", port, UNKNOWN, UNKNOWN, -1)
        assert 0 < port != int(receiver.address.rpartition(":")[2])


@in_loop
async def test_unauthenticated_caller_cannot_state_an_identity() -> None:
    async with opened() as receiver, receiver.caller() as caller:
        assert await refused(caller.get(get(**BROKERS_CLIENT))) is grpc.StatusCode.PERMISSION_DENIED
        request = push(connection=pb.Connection())  # an empty message counts as stated
        assert await refused(caller.push(request)) is grpc.StatusCode.PERMISSION_DENIED
        assert (receiver.records, len(receiver.rules.instances)) == ([], 0)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("authorization", "is_known"),
    [
        ([], None),
        ([f"Bearer {TOKEN}"], True),
        ([f"bearer  {TOKEN}"], True),
        ([f"Bearer {TOKEN}x"], False),
        ([f"Bearer {TOKEN[:-1]}"], False),
        ([f"Basic {TOKEN}"], False),
        ([TOKEN], False),
        ([""], False),
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], False),
    ],
)
@in_loop
async def test_only_known_token_authenticates(direct: bool, authorization: list[str], is_known: bool | None) -> None:
    """None: no token at all, which direct clients need not have."""
    async with opened(direct=direct) as receiver, receiver.caller(*authorization) as caller:
        if is_known or (is_known is None and direct):
            assert (await caller.get(get(**BROKERS_CLIENT if is_known else {}))).error_code == 0
        else:
            assert await refused(caller.get(get())) is grpc.StatusCode.UNAUTHENTICATED


def test_certificate_authenticates_when_subject_is_listed(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ca = authority.ca.read_bytes()
    server, server_key = (path.read_bytes() for path in authority.issue("server"))
    client, client_key = (path.read_bytes() for path in authority.issue("client", "/CN=client/serialNumber=7"))
    tls = GrpcTls(certificate=server, private_key=server_key, client_ca=ca)
    with_certificate = grpc.ssl_channel_credentials(ca, client_key, client)
    without = grpc.ssl_channel_credentials(ca)

    @in_loop
    async def listed() -> None:
        async with opened(tls=tls, subjects=["2.5.4.5=#130137,CN=client"], direct=False) as receiver:
            async with receiver.caller(credentials=with_certificate) as caller:
                assert (await caller.get(get(**BROKERS_CLIENT))).error_code == 0
            async with receiver.caller("Bearer wrong", credentials=with_certificate) as caller:
                assert await refused(caller.get(get())) is grpc.StatusCode.UNAUTHENTICATED
            async with receiver.caller(f"Bearer {TOKEN}", credentials=without) as caller:
                assert await refused(caller.get(get())) is grpc.StatusCode.UNAVAILABLE

    @in_loop
    async def not_listed() -> None:
        async with opened(tls=tls, subjects=["CN=other"]) as receiver:
            async with receiver.caller(credentials=with_certificate) as caller:
                assert await refused(caller.get(get(**BROKERS_CLIENT))) is grpc.StatusCode.PERMISSION_DENIED
                assert await caller.push(push()) == 0
            ((_, record),) = receiver.records
            name = "2.5.4.5=#130137,CN=client"  # as the gateway and Kafka's brokers print it
            assert decode_push(record).connection.principal == name

    listed()
    not_listed()


# --- durability


@in_loop
async def test_answer_waits_for_flush_and_is_89_when_flush_fails() -> None:
    async with opened() as receiver, receiver.trusted() as caller:
        receiver.flush_fails = True
        assert (await caller.get(get())).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await caller.push(push()) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert receiver.flushes == 2
        receiver.flush_fails = False
        receiver.now_ms += 1_000
        assert await caller.push(push()) == ErrorCode.NONE
        assert receiver.flushes == 3


# --- hostile callers


@pytest.mark.parametrize(
    "request_",
    [
        push(client_instance_id=bytes(15)),
        push(client_instance_id=bytes(17)),
        push(connection=pb.Connection(client_source_address="broker1")),
        push(connection=pb.Connection(client_source_address="1.2.3.4", client_source_port=65_536)),
        push(connection=pb.Connection(client_source_address="1.2.3.4", principal="\x01" * 4_097)),
        push(connection=pb.Connection(client_source_address="1.2.3.4", client_id="é" * 16_384)),
    ],
)
@in_loop
async def test_invalid_fields_are_refused(request_: pb.PushTelemetryRequest) -> None:
    async with opened(max_message_bytes=100_000) as receiver, receiver.trusted() as caller:
        assert await refused(caller.push(request_)) is grpc.StatusCode.INVALID_ARGUMENT
        assert (receiver.records, len(receiver.rules.instances)) == ([], 0)


@in_loop
async def test_malformed_message_and_unknown_method_are_refused() -> None:
    async with opened() as receiver, receiver.caller() as caller:
        for name in ("GetTelemetrySubscriptions", "PushTelemetry"):
            assert await refused(caller.call(name, b"\xff\xff")) is grpc.StatusCode.INVALID_ARGUMENT
        assert await refused(caller.call("PullTelemetry", b"")) is grpc.StatusCode.UNIMPLEMENTED


@in_loop
async def test_oversized_message_is_refused() -> None:
    async with opened() as receiver, receiver.caller() as caller:
        assert await refused(caller.push(push(bytes(10_001)))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        bomb = caller.call("PushTelemetry", bytes(20_000_000), compression=grpc.Compression.Gzip)
        assert await refused(bomb) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (receiver.records, len(receiver.rules.instances)) == ([], 0)


def unfinished(caller: Calls) -> grpc.aio.StreamUnaryCall:
    """A call that never sends its message."""
    return caller.channel.stream_unary(f"/{SERVICE}/PushTelemetry")()


@in_loop
async def test_call_without_message_is_refused_and_an_unfinished_one_times_out() -> None:
    async with opened(receive_timeout_s=1) as receiver, receiver.caller() as caller:
        assert await refused(unfinished(caller)) is grpc.StatusCode.DEADLINE_EXCEEDED
        call = unfinished(caller)
        await call.done_writing()
        assert await refused(call) is grpc.StatusCode.INVALID_ARGUMENT


@in_loop
async def test_excess_concurrent_calls_are_refused_as_retryable() -> None:
    async with opened(max_concurrent_calls=2) as receiver, receiver.caller() as slow, receiver.caller() as other:
        calls = [unfinished(slow) for _ in range(2)]
        while (code := await code_of(other)) is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            assert code is grpc.StatusCode.OK  # the slow ones have not arrived yet
            await asyncio.sleep(0.01)
            # one that arrived while `other` was being answered was itself refused
            calls = [unfinished(slow) if call.done() else call for call in calls]
        for call in calls:
            call.cancel()
        while (code := await code_of(other)) is not grpc.StatusCode.OK:
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            await asyncio.sleep(0.01)


async def code_of(caller: Calls) -> grpc.StatusCode:
    try:
        await caller.get(get())
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return grpc.StatusCode.OK


@in_loop
async def test_push_of_a_cancelled_call_is_kept() -> None:
    async with opened() as receiver:
        async with receiver.caller() as caller:
            call = caller.channel.unary_unary(f"/{SERVICE}/PushTelemetry")(push().SerializeToString())
            while not receiver.records:
                await asyncio.sleep(0)
            call.cancel()
        async with receiver.caller() as caller:
            assert await caller.push(push()) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert len(receiver.records) == 1


@in_loop
async def test_address_in_use_raises_os_error() -> None:
    async with opened() as receiver:
        port = int(receiver.address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await receiver._server.start("127.0.0.1", port)
    socket.create_server(("127.0.0.1", port)).close()


@in_loop
async def test_unfinished_tls_handshakes_are_limited_and_time_out(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = (path.read_bytes() for path in authority.issue("server"))
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    tls = GrpcTls(certificate, key, None)
    async with opened(tls=tls, max_connections=4, receive_timeout_s=2.0) as receiver:
        host, _, port = receiver.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        ends = [asyncio.create_task(reader.read(1)) for reader, _ in silent]
        await asyncio.gather(*ends, return_exceptions=True)  # 16 at once, 4 after two seconds
        for _, writer in silent:
            writer.close()
        while await status(receiver, credentials) is not grpc.StatusCode.OK:  # the closed ones may still be counted
            await asyncio.sleep(0.1)


async def status(receiver: OpenReceiver, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
    async with receiver.caller(credentials=credentials) as caller:
        return await code_of(caller)


TRUSTED = Peer("127.0.0.1", 1, None, trusted=True)
DECODE: dict[RecordKind, Callable[[bytes], Any]] = {
    RecordKind.PUSH: decode_push,
    RecordKind.INSTANCE: decode_instance,
}

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
        kept = DECODE[kind](record)
        assert max(len(kept.connection.principal), len(kept.client_id)) <= 255  # a prefix and a hash, if longer
