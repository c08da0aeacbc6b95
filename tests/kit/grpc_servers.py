"""A gRPC server of ours in the running loop, with a spool of lists behind it, and its clients."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import grpc
import grpc.aio
import uvloop

from exporters.model import RecordKind
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_codec import SERVICE, GrpcMessages
from telemetry.receiver.grpc_server import GrpcLimits, GrpcServer, GrpcTls
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics

CLUSTER = "ours"
TOKEN = "the-token-of-the-plug-in"
MAX_BYTES = 100
START_MS = 1_700_000_000_000


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in a loop of its own, as `headroom serve` runs."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 120))

    return run


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.01)


class Calls:
    """A caller: requests to responses over a channel of its own."""

    def __init__(self, channel: grpc.aio.Channel, authorization: Iterable[str]) -> None:
        self.channel = channel
        self._metadata = [("authorization", value) for value in authorization]

    async def get(self, request: pb.GetTelemetrySubscriptionsRequest) -> pb.GetTelemetrySubscriptionsResponse:
        answer = await self.call("GetTelemetrySubscriptions", request.SerializeToString())
        return pb.GetTelemetrySubscriptionsResponse.FromString(answer)

    async def push(self, request: pb.PushTelemetryRequest) -> int:
        answer = pb.PushTelemetryResponse.FromString(await self.call("PushTelemetry", request.SerializeToString()))
        return answer.error_code

    async def call(self, name: str, message: bytes, **settings: Any) -> bytes:
        answer: bytes = await self.channel.unary_unary(f"/{SERVICE}/{name}")(
            message, metadata=self._metadata, timeout=30, **settings
        )
        return answer


class OpenReceiver:
    """One subscription to all metrics each second; `records` reached the spool in `flushes` flushes."""

    def __init__(self, access: Access, tls: GrpcTls | None, **limits: Any) -> None:
        numbers = itertools.count(2)
        self.now_ms = START_MS
        self.records: list[tuple[RecordKind, bytes]] = []
        self.flushes = 0
        self.flush_fails = False
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"))
        self.rules.replace_all({"sub": {"metrics": "*", "interval.ms": "1000"}}, START_MS)
        self.telemetry = TelemetryReceiver(
            self.rules,
            append=lambda kind, record: self.records.append((kind, record)),
            telemetry_max_bytes=MAX_BYTES,
        )
        bounds = {
            "max_message_bytes": 10_000,
            "max_connections": 100,
            "max_concurrent_calls": 100,
            "receive_timeout_s": 30,
        } | limits
        self._server = GrpcServer(
            GrpcMessages(self.telemetry, CLUSTER),
            access=access,
            commit=GroupCommit(self._flush, self.telemetry.settled),
            now_ms=lambda: self.now_ms,
            limits=GrpcLimits(**bounds),
            tls=tls,
        )

    def _flush(self) -> None:
        self.flushes += 1
        if self.flush_fails:
            raise OSError("no space left on device")

    async def start(self) -> None:
        host, port = await self._server.start("127.0.0.1", 0)
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        await self._server.stop(0.2)

    @contextlib.asynccontextmanager
    async def caller(
        self, *authorization: str, credentials: grpc.ChannelCredentials | None = None
    ) -> AsyncIterator[Calls]:
        options = [("grpc.max_metadata_size", 1 << 20), ("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            channel = grpc.aio.secure_channel(self.address, credentials, options=options)
        async with channel:
            yield Calls(channel, authorization)

    def trusted(self) -> contextlib.AbstractAsyncContextManager[Calls]:
        return self.caller(f"Bearer {TOKEN}")


@contextlib.asynccontextmanager
async def opened(
    *, subjects: Iterable[str] = (), direct: bool = True, tls: GrpcTls | None = None, **limits: Any
) -> AsyncIterator[OpenReceiver]:
    """A receiver that knows TOKEN."""
    receiver = OpenReceiver(Access(tokens=[TOKEN], subjects=subjects, direct=direct), tls, **limits)
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()
