"""The gRPC server over real sockets: the protocol rules, and which callers may state a client's identity."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from exporters.model import ANONYMOUS, UNKNOWN, ClientInstance, Connection, RecordKind
from exporters.spool.records import decode_instance, decode_push
from quota_metrics.kafka.primitives import Reader
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_server import GrpcTls
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from tests.kit.certificates import CertificateAuthority
from tests.kit.grpc_servers import CLUSTER, MAX_BYTES, START_MS, TOKEN, OpenReceiver, in_loop, opened
from tests.kit.telemetry_requests import answered, subscription_id
from tests.kit.wire import write_compact_bytes
from tests.telemetry.receiver.grpc_calls import BROKERS_CLIENT, FACTS, ID, WIRE_ID, get, push, refused

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


def on_the_wire(receiver: OpenReceiver, fields: dict[str, Any] | None) -> int:
    caller = Caller(FACTS, "app", "wire")
    if fields is None:
        answer = answered(receiver.telemetry, GET_TELEMETRY_SUBSCRIPTIONS, WIRE_ID + b"\x00", caller, receiver.now_ms)
    else:
        request = push(**{"client_instance_id": WIRE_ID, **fields})
        head = (request.client_instance_id, request.subscription_id, request.terminating, request.compression_type)
        body = bytearray(struct.pack(">16si?b", *head))
        write_compact_bytes(body, request.metrics)
        answer = answered(receiver.telemetry, PUSH_TELEMETRY, bytes(body) + b"\x00", caller, receiver.now_ms)
    return Reader(answer.body, 4).int16()


@in_loop
async def test_answers_match_the_kafka_protocol() -> None:
    async with opened() as receiver, receiver.trusted() as caller:
        codes = []
        for later_ms, fields in SEQUENCE:
            receiver.now_ms += later_ms
            code = (await caller.get(get())).error_code if fields is None else await caller.push(push(**fields))
            codes.append((code, on_the_wire(receiver, fields)))
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
