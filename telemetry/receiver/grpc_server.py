"""The gRPC server of headroom.telemetry.v1: authenticates a call, applies the rules, waits for the flush, answers.

Internal errors are responses with error_code 89, as in the Kafka protocol; gRPC statuses report errors of the caller.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import grpc
import grpc.aio

from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.grpc_auth import Access, MessageError, NotAllowedError, Peer, UnauthenticatedError
from telemetry.receiver.grpc_codec import SERVICE, GrpcMessages
from telemetry.receiver.grpc_listener import GrpcLimits, GrpcListener, Tls
from telemetry.receiver.receiver import Answer


class _Refusal(NamedTuple):
    status: grpc.StatusCode
    why: str


_Answer = Callable[[bytes, Peer, int], Answer]
_STATUS: Final[dict[type[Exception], grpc.StatusCode]] = {
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    MessageError: grpc.StatusCode.INVALID_ARGUMENT,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcServer:
    """Serves headroom.telemetry.v1.ClientTelemetryService in the running loop."""

    def __init__(
        self,
        messages: GrpcMessages,
        *,
        access: Access,
        commit: GroupCommit,
        now_ms: Callable[[], int],
        limits: GrpcLimits,
        tls: Tls | None,
    ) -> None:
        self.refused: Counter[grpc.StatusCode] = Counter()
        self._messages = messages
        self._listener = GrpcListener(access, limits, tls)
        self._commit = commit
        self._now_ms = now_ms

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Raises OSError when the address cannot be used."""
        return await self._listener.start(host, port, self._handlers())

    async def stop(self, grace_s: float) -> None:
        """Stops accepting calls and waits at most `grace_s` for those in flight."""
        await self._listener.stop(grace_s)

    def _handlers(self) -> grpc.GenericRpcHandler:
        answers = {
            "GetTelemetrySubscriptions": self._messages.get_telemetry_subscriptions,
            "PushTelemetry": self._messages.push_telemetry,
        }
        # As streams: gRPC calls a unary handler only after the message has arrived, too late for the limits.
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.stream_unary_rpc_method_handler(functools.partial(self._call, answer))
                for name, answer in answers.items()
            },
        )

    async def _call(self, answer: _Answer, _: object, context: grpc.aio.ServicerContext) -> bytes:
        answered = await self._answered(answer, context)
        if isinstance(answered, Answer):
            is_safe = not answered.after_flush or await self._commit.flushed()
            return answered.body if is_safe else answered.refusal
        self.refused[answered.status] += 1
        await context.abort(answered.status, answered.why)
        return b""  # abort() raises

    async def _answered(self, answer: _Answer, context: grpc.aio.ServicerContext) -> Answer | _Refusal:
        """Returns refusals: gRPC keeps an exception that ends a call, and its message, until a full collection."""
        try:
            peer = self._listener.peer(context)
            return answer(await self._listener.message(context), peer, self._now_ms())
        except tuple(_STATUS) as exc:
            return _Refusal(_STATUS[type(exc)], str(exc))
