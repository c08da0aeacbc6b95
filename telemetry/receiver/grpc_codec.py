"""The gRPC service without sockets: decodes a request, applies the rules and encodes the response. Sans-I/O.

Messages: proto/headroom/telemetry/v1/telemetry.proto. The rules are those of the Kafka protocol.
"""

from typing import Any, Final

from google.protobuf.message import DecodeError

from telemetry.decode.lenient import LenientReader
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_auth import MessageError, Peer, caller_of
from telemetry.receiver.telemetry_requests import RETRY, Answer, TelemetryReceiver, all_metrics_for
from telemetry.subscriptions.kip714_rules import ZERO_ID, PushRequest
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import ACCEPTED_COMPRESSION_TYPES

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ClientTelemetryService"].full_name
_GET: Final = LenientReader(pb.GetTelemetrySubscriptionsRequest)
_PUSH: Final = LenientReader(pb.PushTelemetryRequest)


class GrpcMessages:
    """Answers encoded requests of one cluster's clients. Each method raises MessageError and NotAllowedError."""

    def __init__(self, receiver: TelemetryReceiver, cluster: str) -> None:
        self._receiver = receiver
        self._cluster = cluster

    def get_telemetry_subscriptions(self, message: bytes, peer: Peer, now_ms: int) -> Answer:
        request = _parse(_GET, message)
        caller = caller_of(peer, request.connection if request.HasField("connection") else None, self._cluster)
        granted = self._receiver.get(_instance_id(request.client_instance_id), caller, now_ms)
        instance = granted.instance
        if instance is None:
            response = pb.GetTelemetrySubscriptionsResponse(error_code=granted.code)
        else:
            response = pb.GetTelemetrySubscriptionsResponse(
                client_instance_id=instance.client_instance_id,
                subscription_id=instance.subscription_id,
                accepted_compression_types=ACCEPTED_COMPRESSION_TYPES,
                push_interval_ms=instance.selection.interval_ms,
                telemetry_max_bytes=self._receiver.telemetry_max_bytes,
                delta_temporality=True,
                requested_metrics=instance.selection.spelled(all_metrics_for(caller.connection.software_name)),
            )
        return Answer(response.SerializeToString(), granted.after_flush, _REFUSED_GET)

    def push_telemetry(self, message: bytes, peer: Peer, now_ms: int) -> Answer:
        request = _parse(_PUSH, message)
        caller = caller_of(peer, request.connection if request.HasField("connection") else None, self._cluster)
        push = PushRequest(
            _instance_id(request.client_instance_id),
            request.subscription_id,
            request.terminating,
            request.compression_type,
            caller,
        )
        code = self._receiver.push(push, request.metrics, now_ms)
        body = pb.PushTelemetryResponse(error_code=code).SerializeToString()
        return Answer(body, code is ErrorCode.NONE, _REFUSED_PUSH)


_REFUSED_GET = pb.GetTelemetrySubscriptionsResponse(error_code=RETRY).SerializeToString()
_REFUSED_PUSH = pb.PushTelemetryResponse(error_code=RETRY).SerializeToString()


def _parse(reader: LenientReader, message: bytes) -> Any:
    try:
        return reader.read(message).message
    except DecodeError as exc:
        raise MessageError("the message cannot be parsed") from exc


def _instance_id(field: bytes) -> bytes:
    """An absent id reads as the zero id, the default of Kafka's uuid fields."""
    if len(field) not in (0, len(ZERO_ID)):
        raise MessageError(f"client_instance_id has {len(field)} bytes, not {len(ZERO_ID)}")
    return field or ZERO_ID
