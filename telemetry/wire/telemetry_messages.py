"""Encodes and decodes GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0. Sans-I/O.

Hand-written: a generic codec costs more than the rest of the push path.
"""

import functools
import struct
from typing import Final, NamedTuple

from quota_metrics.kafka.primitives import ProtocolError, Reader, write_compact_array_length, write_compact_string
from telemetry.wire.errors import ErrorCode

PUSH_HEAD: Final = struct.Struct(">16siBb")  # client_instance_id, subscription_id, terminating, compression_type
_GET_HEAD: Final = struct.Struct(">ih16si")  # throttle_time_ms, error_code, client_instance_id, subscription_id
_GET_TAIL: Final = struct.Struct(">ii?")  # push_interval_ms, telemetry_max_bytes, delta_temporality
_PUSH_ANSWER: Final = struct.Struct(">ihB")  # throttle_time_ms, error_code, no tagged fields
ACCEPTED_COMPRESSION_TYPES: Final = b"\x04\x03\x01\x02"  # zstd, lz4, gzip, snappy, in order of preference


class PushHead(NamedTuple):
    """The fields of a PushTelemetry request that precede the payload."""

    client_instance_id: bytes
    subscription_id: int
    terminating: bool
    compression_type: int


def read_get(body: bytes) -> bytes:
    """The client instance id of a request. Raises ProtocolError."""
    reader = Reader(body)
    client_instance_id = reader.uuid()
    reader.skip_tagged()
    return client_instance_id


def read_push(body: bytes) -> tuple[PushHead, bytes]:
    """The head and the payload of a request; a null payload reads as empty. Raises ProtocolError."""
    reader = Reader(body, min(PUSH_HEAD.size, len(body)))
    size = max(reader.uvarint() - 1, 0)
    start = reader.offset
    reader.skip(size)
    reader.skip_tagged()
    return read_push_head(body), body[start : start + size]


def read_push_head(body: bytes) -> PushHead:
    """The head of a request whose payload may not have arrived yet. Raises ProtocolError."""
    try:
        client_instance_id, subscription_id, terminating, compression_type = PUSH_HEAD.unpack_from(body)
    except struct.error as exc:
        raise ProtocolError(f"cannot read a PushTelemetry request of {len(body)} bytes") from exc
    return PushHead(client_instance_id, subscription_id, terminating != 0, compression_type)


# Responses with a code and default values: empty arrays and tagged fields take one byte each.
REFUSED_GET: Final = {
    code: _GET_HEAD.pack(0, code, bytes(16), 0) + b"\x01" + _GET_TAIL.pack(0, 0, False) + b"\x01\x00"
    for code in ErrorCode
}
PUSH_RESPONSE: Final = {code: _PUSH_ANSWER.pack(0, code, 0) for code in ErrorCode}


def throttled_get(throttle_ms: int) -> bytes:
    return throttle_ms.to_bytes(4, "big") + REFUSED_GET[ErrorCode.THROTTLING_QUOTA_EXCEEDED][4:]


def throttled_push(throttle_ms: int) -> bytes:
    return _PUSH_ANSWER.pack(throttle_ms, ErrorCode.THROTTLING_QUOTA_EXCEEDED, 0)


def granted_get(
    client_instance_id: bytes,
    subscription_id: int,
    push_interval_ms: int,
    telemetry_max_bytes: int,
    requested_metrics: tuple[str, ...],
    codecs: bytes = ACCEPTED_COMPRESSION_TYPES,
    delta: bool = True,
) -> bytes:
    """The body of a GetTelemetrySubscriptions response with code NONE. `codecs`: ids in order of preference."""
    head = _GET_HEAD.pack(0, ErrorCode.NONE, client_instance_id, subscription_id)
    return head + _subscription_bytes(push_interval_ms, telemetry_max_bytes, requested_metrics, codecs, delta)


@functools.lru_cache(maxsize=1024)
def _subscription_bytes(
    push_interval_ms: int, telemetry_max_bytes: int, requested_metrics: tuple[str, ...], codecs: bytes, delta: bool
) -> bytes:
    """The fields after the subscription id, which are equal for all clients with the same subscriptions."""
    out = bytearray()
    write_compact_array_length(out, len(codecs))
    out += codecs
    out += _GET_TAIL.pack(push_interval_ms, telemetry_max_bytes, delta)
    write_compact_array_length(out, len(requested_metrics))
    for prefix in requested_metrics:
        write_compact_string(out, prefix)
    out.append(0)
    return bytes(out)
