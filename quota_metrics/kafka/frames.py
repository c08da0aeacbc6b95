"""Encodes kio's requests as frames and decodes frames to kio's responses. Sans-I/O."""

from __future__ import annotations

import io
from typing import Any

from kio.index import load_response_from_request
from kio.serial import entity_writer
from kio.static.primitive import i32
from kio.static.protocol import RequestPayload

from quota_metrics.kafka.decoding import decode, decode_head


def encoded(request: RequestPayload, correlation_id: int, client_id: str) -> bytes:
    """Header and request, without the length. Raises ValueError when the request cannot be encoded."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


def decoded(request: RequestPayload, frame: bytes) -> Any:
    """The response to this request. Raises ProtocolError."""
    response_type: Any = load_response_from_request(request)
    _, at = decode_head(response_type.__header_schema__, frame)
    return decode(response_type, frame, at)


def api_name(request: RequestPayload) -> str:
    """Kafka's name of the API: DescribeClientQuotas."""
    return type(request).__name__.removesuffix("Request")
