"""OTLP/gRPC: one unary call per request."""

from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from exporters.environment_proxy import environment_proxy
from exporters.otlp.outcome import (
    EndpointSendError,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
    receiver_text,
)

_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
# gRPC makes these of a proxy's 401, 403 and 404, too.
_OF_THE_ENDPOINT: Final = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED}
)
_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_DETAILS = "grpc-status-details-bin"
_SMALL_BYTES = 1 << 16  # for any receiver: one that refuses them has no room for the moment
_MAX_TIMEOUTS = 3  # one after the other
_MAX_RECONNECT_BACKOFF_MS = 5_000  # gRPC's default is two minutes, for which a receiver that is back would get nothing


class GrpcSender:
    """Connects on first use, and anew after a lost connection or several timeouts: a load balancer may swallow all that
    it gets on a connection, and gRPC does not leave it."""

    def __init__(
        self,
        target: str,
        *,
        tls: grpc.ChannelCredentials | None,
        headers: dict[str, str],
        gzip: bool,
        timeout_s: float,
    ) -> None:
        """`target` is HOST:PORT. If `tls` is None, the connection is plaintext. Header names are lower-cased, as gRPC
        requires."""
        proxy = environment_proxy(f"{'https' if tls else 'http'}://{target}")
        options = [
            ("grpc.max_receive_message_length", 1 << 20),
            ("grpc.enable_retries", 0),
            ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_BACKOFF_MS),
            ("grpc.http_proxy", proxy) if proxy else ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),  # a new channel has no connection of an earlier one
        ]
        plaintext = partial(grpc.insecure_channel, target, options)
        self._open = plaintext if tls is None else partial(grpc.secure_channel, target, tls, options)
        self._connect()
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
        self._timeout_s = timeout_s

    def _connect(self) -> None:
        self._timeouts = 0
        self._channel = self._open()
        self._export = self._channel.unary_unary(
            _METHOD,
            request_serializer=ExportMetricsServiceRequest.SerializeToString,
            response_deserializer=ExportMetricsServiceResponse.FromString,
        )

    def send(self, request: Any) -> Any:
        """See exporters.otlp.outcome.OtlpSender."""
        try:
            response = self._export(
                request, timeout=self._timeout_s, metadata=self._metadata, compression=self._compression
            )
        except grpc.RpcError as exc:
            self._timeouts = self._timeouts + 1 if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED else 0
            if self._timeouts >= _MAX_TIMEOUTS:
                self._channel.close()
                self._connect()
            text = receiver_text(exc.details() or "", (value for _, value in self._metadata))
            raise _send_error(exc, text, request.ByteSize()) from exc
        except ValueError as exc:  # its text has the header
            raise RetryableSendError(f"{type(exc).__name__}: a header cannot be sent") from None
        self._timeouts = 0
        return response.partial_success

    def close(self) -> None:
        self._channel.close()


def _send_error(error: Any, text: str, request_bytes: int) -> SendError:
    """RESOURCE_EXHAUSTED is retryable with a RetryInfo; without it a large request itself may be too large."""
    code = error.code()
    message = f"{code.name}: {text}"
    details = [value for name, value in error.trailing_metadata() or () if name == _DETAILS]
    delay_s = _retry_delay_s(details[0]) if details else None
    if code in _RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay_s is not None):
        return RetryableSendError(message, delay_s)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooLargeSendError(message) if request_bytes > _SMALL_BYTES else RetryableSendError(message)
    return EndpointSendError(message) if code in _OF_THE_ENDPOINT else PermanentSendError(message)


def _retry_delay_s(details: bytes) -> float | None:
    """The delay of the RetryInfo in a google.rpc.Status, or None if there is no RetryInfo."""
    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    except DecodeError:
        pass
    return None
