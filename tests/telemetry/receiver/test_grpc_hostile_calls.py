"""The gRPC server over real sockets: late flushes, internal errors, and invalid, long or unfinished messages."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from exporters.identity import stored_name
from exporters.spool.records import decode_push
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_codec import SERVICE
from telemetry.receiver.grpc_server import GrpcTls
from telemetry.wire.errors import ErrorCode
from tests.kit.certificates import CertificateAuthority
from tests.kit.grpc_servers import Calls, OpenReceiver, in_loop, opened
from tests.telemetry.receiver.grpc_calls import get, push, refused

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
async def test_identity_fields_of_maximum_size_fit_a_record() -> None:
    worst: dict[str, Any] = dict.fromkeys(
        ("cluster", "listener", "client_software_name", "client_software_version"), "\x01" * 255
    )
    worst |= {"principal": "\x01" * 4_096, "client_id": "é" * 16_383, "connection_id": "\x01" * 1_024}
    async with opened(max_message_bytes=100_000) as receiver, receiver.trusted() as caller:
        request = push(connection=pb.Connection(**worst, client_source_address="::1", client_source_port=65_535))
        assert await caller.push(request) == 0
        ((_, record),) = receiver.records
        kept = decode_push(record)
        assert (kept.connection.principal, kept.client_id) == tuple(
            stored_name(worst[name]) for name in ("principal", "client_id")
        )
        assert (len(kept.connection.principal), len(kept.client_id)) == (255, 255)


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
