"""The OTLP/gRPC receiver: opentelemetry.proto.collector.metrics.v1.MetricsService.

Retryable statuses are returned only where a retry can succeed: UNAVAILABLE, and RESOURCE_EXHAUSTED with RetryInfo
(OTLP specification, "Failures" and "OTLP/gRPC Throttling"). gRPC itself decompresses gzip and deflate.
"""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from telemetry.receiver.grpc_auth import Access, MessageError, UnauthenticatedError
from telemetry.receiver.grpc_server import GrpcEndpoint, GrpcLimits, GrpcRefusal, GrpcTls
from telemetry.receiver.otlp_export import Export
from telemetry.receiver.otlp_identity import OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, parse_protobuf
from telemetry.receiver.otlp_receiver import RETRY_AFTER_S, OtlpBusyError, OtlpReceiver

TRANSPORT: Final = "otlp_grpc"
SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"


_STATUS: Final[dict[type[Exception], tuple[grpc.StatusCode, str]]] = {
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    MessageError: (grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    TimeoutError: (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"),
}


class OtlpGrpcServer:
    """Serves the metrics service in the running loop."""

    def __init__(self, receiver: OtlpReceiver, access: Access, limits: GrpcLimits, tls: GrpcTls | None) -> None:
        self._receiver = receiver
        self._endpoint = GrpcEndpoint(access, limits, tls)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Raises OSError when the address cannot be used."""
        # As a stream: gRPC calls a unary handler only after the message has arrived, too late for the limits.
        export = grpc.stream_unary_rpc_method_handler(self._export)
        return await self._endpoint.start(host, port, grpc.method_handlers_generic_handler(SERVICE, {"Export": export}))

    async def stop(self, grace_s: float) -> None:
        """Stops accepting calls and waits at most `grace_s` for those in flight."""
        await self._endpoint.stop(grace_s)

    async def _export(self, _: object, context: grpc.aio.ServicerContext) -> bytes:
        answered = await self._answered(context)
        if isinstance(answered, Export):
            return answered.response().SerializeToString()
        if answered.status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # Without RetryInfo, senders treat RESOURCE_EXHAUSTED as permanent and drop the data.
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=RETRY_AFTER_S)))
            details = Status(code=answered.status.value[0], message=answered.why, details=[detail])
            context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
        await context.abort(answered.status, answered.why)
        return b""  # abort() raises

    async def _answered(self, context: grpc.aio.ServicerContext) -> Export | GrpcRefusal:
        """Returns refusals: gRPC keeps an exception that ends a call, and its message, until a full collection."""
        try:
            peer = self._endpoint.peer(context)
            body = await self._endpoint.message(context)
            return await self._receiver.accept(body, parse_protobuf, OtlpCaller(peer.address, peer.trusted, TRANSPORT))
        except tuple(_STATUS) as exc:
            status, outcome = _STATUS[type(exc)]
            self._receiver.refused(TRANSPORT, outcome)
            return GrpcRefusal(status, str(exc))
        except OtlpError as exc:
            return GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        except OtlpBusyError as exc:
            return GrpcRefusal(grpc.StatusCode.RESOURCE_EXHAUSTED, str(exc))
