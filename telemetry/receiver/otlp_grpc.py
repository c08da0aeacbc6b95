"""The OTLP/gRPC receiver: opentelemetry.proto.collector.metrics.v1.MetricsService.

Retryable statuses are returned only where a retry can succeed: UNAVAILABLE, and RESOURCE_EXHAUSTED with RetryInfo
(OTLP specification, "Failures" and "OTLP/gRPC Throttling"). gRPC itself decompresses gzip and deflate.
"""

from typing import Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from telemetry.receiver.grpc_auth import Access, MessageError, UnauthenticatedError
from telemetry.receiver.grpc_server import Context, GrpcEndpoint, GrpcLimits, GrpcTls
from telemetry.receiver.otlp_identity import OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, parse_protobuf
from telemetry.receiver.otlp_receiver import RETRY_AFTER_S, OtlpBusyError, OtlpReceiver

TRANSPORT: Final = "otlp_grpc"
SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"

# With the label under which a refusal is counted; the receiver counts its own.
_STATUS: Final[dict[type[Exception], tuple[grpc.StatusCode, str]]] = {
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    MessageError: (grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    TimeoutError: (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"),
    OtlpError: (grpc.StatusCode.INVALID_ARGUMENT, ""),
    OtlpBusyError: (grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
}


class OtlpGrpcServer(GrpcEndpoint):
    """Serves the metrics service in the running loop."""

    def __init__(self, receiver: OtlpReceiver, access: Access, limits: GrpcLimits, tls: GrpcTls | None) -> None:
        super().__init__(access, limits, tls)
        self._receiver = receiver
        self._open = 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Raises OSError when the address cannot be used."""
        return await self.serve(host, port, SERVICE, {"Export": self._export}, None)  # gRPC would add no RetryInfo

    async def _export(self, _: object, context: Context) -> bytes:
        self._open += 1
        try:
            if self._open > self._limits.max_concurrent_calls:
                self._receiver.requests[TRANSPORT, "busy"] += 1
                raise OtlpBusyError("too many calls at once")
            peer = self.peer(context)
            sender = OtlpCaller(peer.address, peer.trusted, TRANSPORT)
            export = await self._receiver.accept(await self.message(context), parse_protobuf, sender)
        except tuple(_STATUS) as exc:
            (status, outcome), why = _STATUS[type(exc)], str(exc)
        else:
            return export.response().SerializeToString()
        finally:
            self._open -= 1
        if outcome:
            self._receiver.requests[TRANSPORT, outcome] += 1
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # Without RetryInfo, senders treat RESOURCE_EXHAUSTED as permanent and drop the data.
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(seconds=RETRY_AFTER_S)))
            details = Status(code=status.value[0], message=why, details=[detail])
            context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
        # After `except`: gRPC keeps an exception that ends a call, with all that it refers to, until a full collection.
        await context.abort(status, why)
        return b""  # abort() raises
