"""Encodes kio's requests as frames and decodes frames to kio's responses. Sans-I/O.

kio 0.6.5 allocates memory by an array's stated length before it checks that the bytes are present, which aborts the
process; it also refuses unknown tagged fields, which KIP-482 allows a newer broker to send. Therefore kio's classes
only serve as the schema (their dataclass fields define the wire types), and this module reads with bounds checks.

A thread that decodes holds the interpreter for 5 ms at a time, while frames wait; so it may be `interrupted` often.
"""

import dataclasses
import datetime
import io
import struct
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from kio.index import load_request_schema, load_response_from_request, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32
from kio.static.protocol import RequestPayload

from quota_metrics.kafka.primitives import ProtocolError, Reader

E = TypeVar("E")
Read = Callable[[Reader], Any]

_ELEMENTS: Final = 32  # between two interruptions
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
        request: RequestPayload = _entity_of(load_request_schema(self.key, version), self._fields)
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


def response_body(key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """A response without its header; `fields` as in NegotiatedRequest."""
    response = _entity_of(load_response_schema(key, version), fields)
    buffer = io.BytesIO()
    entity_writer(type(response))(buffer, response)
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


def _entity_of(entity_type: Any, fields: Mapping[str, Any]) -> Any:
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
    return _entity_of(inner, value) if dataclasses.is_dataclass(inner) else value


class _OfThread(threading.local):
    interruption: Callable[[], None] | None = None


_of_thread = _OfThread()


@contextmanager
def interrupted(interruption: Callable[[], None]) -> Iterator[None]:
    """Within it, this thread calls `interruption` every few microseconds that it decodes."""
    _of_thread.interruption = interruption
    try:
        yield
    finally:
        _of_thread.interruption = None


def interrupt() -> None:
    """Called between small parts of a response."""
    if _of_thread.interruption is not None:
        _of_thread.interruption()


def decode_head(entity_type: type[E], data: bytes) -> tuple[E, int]:
    """The entity at the beginning of `data`, and its end. Raises ProtocolError."""
    reader = Reader(data)
    entity: E = _entity(entity_type)(reader)
    return entity, reader.offset


def _compiled(entity_type: Any) -> Read:
    fields = dataclasses.fields(entity_type)
    flexible: bool = entity_type.__flexible__
    plain = [(field.name, _field(field, flexible)) for field in fields if "tag" not in field.metadata]
    tagged = {
        field.metadata["tag"]: (field.name, _field(field, flexible)) for field in fields if "tag" in field.metadata
    }
    # UpdateRaftVoter and FetchSnapshot have tagged structures without a default: None here.
    absent = {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in fields
        if "tag" in field.metadata
    }

    def read(reader: Reader) -> Any:
        values = dict(absent)
        for name, read_field in plain:
            values[name] = read_field(reader)
        for _ in range(reader.uvarint() if flexible else 0):  # an excessive count ends at the first missing element
            tag = reader.uvarint()
            value = reader.part(reader.uvarint())
            if tag in tagged:
                name, read_field = tagged[tag]
                values[name] = read_field(value)
        return entity_type(**values)

    return read


_entity: Callable[[Any], Read] = cache(_compiled)


def _field(field: dataclasses.Field[Any], flexible: bool) -> Read:
    """The reader of a field: an array, a structure or a primitive value, each possibly nullable."""
    inner, optional = without_none(field.type)
    tagged = "tag" in field.metadata  # a tagged field is absent when null, so its structure has no null marker
    if typing.get_origin(inner) is tuple:
        element: Any = typing.get_args(inner)[0]
        read = _entity(element) if dataclasses.is_dataclass(element) else _plain(field, flexible, optional=False)
        return _array(read, flexible, optional)
    if dataclasses.is_dataclass(inner):
        read = _entity(inner)
        if not optional or tagged:
            return read
        return lambda reader: None if reader.int8() < 0 else read(reader)  # KIP-893: a byte says whether it is null
    return _plain(field, flexible, optional)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it may be null."""
    if typing.get_origin(annotation) is not types.UnionType:
        return annotation, False
    (inner,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return inner, True


def _array(read: Read, flexible: bool, optional: bool) -> Read:
    read_length = Reader.compact_array_length if flexible else Reader.array_length

    def read_array(reader: Reader) -> tuple[Any, ...] | None:
        length = read_length(reader)
        if length < 0:
            if optional:
                return None
            raise ProtocolError("cannot read an array: null where the schema allows none")
        if length <= _ELEMENTS:
            interrupt()
            return tuple([read(reader) for _ in range(length)])
        elements = []
        for number in range(length):
            elements.append(read(reader))
            if number % _ELEMENTS == 0:
                interrupt()
        return tuple(elements)

    return read_array


def _plain(field: dataclasses.Field[Any], flexible: bool, optional: bool) -> Read:
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if kafka_type == "datetime_i64":
        return _read_datetime if optional else _required(_read_datetime)
    if kafka_type == "string":
        read: Read = Reader.compact_nullable_string if flexible else Reader.nullable_string
    else:
        read = _compact_bytes if flexible else _bytes
    return read if optional else _required(read)


def _bytes(reader: Reader) -> bytes | None:
    length = reader.int32()
    return None if length == -1 else reader.raw(length)


def _compact_bytes(reader: Reader) -> bytes | None:
    length = reader.uvarint() - 1
    return None if length == -1 else reader.raw(length)


def _required(read: Read) -> Read:
    def read_required(reader: Reader) -> Any:
        value = read(reader)
        if value is None:
            raise ProtocolError(f"null before offset {reader.offset} where the schema allows none")
        return value

    return read_required


def _made(read: Read, make: Callable[[Any], Any]) -> Read:
    return lambda reader: make(read(reader))


def _error_code(code: int) -> int:
    try:
        return ErrorCode(code)
    except ValueError:  # of a newer Kafka
        return code


def _timedelta(ms: int) -> datetime.timedelta:
    try:
        return datetime.timedelta(milliseconds=ms)
    except OverflowError as exc:
        raise ProtocolError(f"a time span of {ms} ms") from exc


def _datetime(ms: int) -> datetime.datetime | None:
    if ms == -1:
        return None
    try:
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=ms)
    except OverflowError as exc:
        raise ProtocolError(f"a time of {ms} ms") from exc


_read_datetime = _made(Reader.int64, _datetime)
_FIXED: dict[str, Read] = {
    "bool": Reader.boolean,
    "int8": Reader.int8,
    "int16": Reader.int16,
    "int32": Reader.int32,
    "int64": Reader.int64,
    "uint16": Reader.uint16,
    "float64": Reader.float64,
    "error_code": _made(Reader.int16, _error_code),
    "timedelta_i32": _made(Reader.int32, _timedelta),
    "timedelta_i64": _made(Reader.int64, _timedelta),
    "uuid": _made(Reader.uuid, lambda packed: UUID(bytes=packed) if any(packed) else None),
}
