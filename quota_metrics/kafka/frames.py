"""Encodes kio's requests as frames and decodes frames to kio's responses. Sans-I/O."""

from __future__ import annotations

import dataclasses
import io
import struct
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kio.index import load_request_schema, load_response_from_request
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32
from kio.static.protocol import RequestPayload

from quota_metrics.kafka.decoding import decode_head, without_none
from quota_metrics.kafka.primitives import ProtocolError, Reader

# (version, body of a response) -> what is needed of it. Raises ProtocolError.
ReadBody: TypeAlias = Callable[[int, Reader], Any]


class NegotiatedRequest:
    """A request in any version: a connection sends the first of `versions` that its broker supports.

    `fields` are named as kio names them, structures are mappings. A version that lacks a field is sent without it, so
    `versions` has those that can say what is meant; by default all that kio knows from `least` on, newest first.
    """

    def __init__(
        self, key: int, fields: Mapping[str, Any], *, least: int = 0, versions: Sequence[int] | None = None
    ) -> None:
        self.key = key
        self.name = "".join(word.capitalize() for word in api_key_map[key].split("_"))
        self.versions = versions or sorted(
            (version for version in schema_name_map[api_key_map[key]] if version >= least), reverse=True
        )
        self._fields = fields

    def in_version(self, version: int) -> RequestPayload:
        """As kio's entity; loads its schema."""
        request: RequestPayload = _entity(load_request_schema(self.key, version), self._fields)
        return request


def encoded(request: RequestPayload, correlation_id: int, client_id: str) -> bytes:
    """Header and request, without the length. Raises ProtocolError when the request cannot be encoded."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    buffer = io.BytesIO()
    try:
        entity_writer(type(header))(buffer, header)
        entity_writer(type(request))(buffer, request)
    except (SerialError, ValueError, struct.error) as exc:  # such as a name that is longer than its length field says
        raise ProtocolError(f"cannot send {api_name(request)}: {exc}") from exc
    return buffer.getvalue()


def decoded(request: RequestPayload, frame: bytes, read: ReadBody | None = None) -> Any:
    """The response to this request, or what `read` takes of its body. Bytes behind it are ignored, as by Java's
    clients. Raises ProtocolError."""
    response_type: Any = load_response_from_request(request)
    _, at = decode_head(response_type.__header_schema__, frame)
    if read is not None:
        return read(request.__version__, Reader(frame, at))
    return decode_head(response_type, frame[at:])[0]


def api_name(request: RequestPayload) -> str:
    """Kafka's name of the API: DescribeClientQuotas."""
    return type(request).__name__.removesuffix("Request")


def _entity(entity_type: Any, fields: Mapping[str, Any]) -> Any:
    return entity_type(
        **{
            field.name: _value(field.type, fields[field.name])
            for field in dataclasses.fields(entity_type)
            if field.name in fields
        }
    )


def _value(annotation: Any, value: Any) -> Any:
    inner, optional = without_none(annotation)
    if value is None:
        return None if optional else ()  # in Metadata 0 an empty array means all topics, as null does in later ones
    if typing.get_origin(inner) is tuple:
        return tuple(_value(typing.get_args(inner)[0], element) for element in value)
    return _entity(inner, value) if dataclasses.is_dataclass(inner) else value
