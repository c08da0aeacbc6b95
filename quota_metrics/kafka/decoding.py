"""Decodes Kafka responses to kio's entities. Sans-I/O.

kio 0.6.5 allocates memory by an array's stated length before it checks that the bytes are present, which aborts the
process; it also refuses unknown tagged fields, which KIP-482 allows a newer broker to send. Therefore kio's classes
only serve as the schema (their dataclass fields define the wire types), and this module reads with bounds checks.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

E = TypeVar("E")
Read = Callable[["Cursor"], Any]


class UndecodableError(ValueError):
    """The bytes do not match the schema."""


class Cursor:
    """A position in the bytes, and the end of the readable range."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def skip(self, length: int) -> int:
        """Offset of the next `length` bytes. Raises UndecodableError when fewer are left."""
        start = self.at
        if not 0 <= length <= self.end - start:
            raise UndecodableError(f"{length} bytes at {start} of {self.end}")
        self.at = start + length
        return start

    def uvarint(self) -> int:
        """Unsigned varint of at most 5 bytes (ByteUtils.readUnsignedVarint)."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise UndecodableError(f"a varint of more than 5 bytes before {self.at}")


def decode(entity_type: type[E], data: bytes, at: int = 0) -> E:
    """The entity from `at` to the end of `data`. Raises UndecodableError."""
    cursor = Cursor(data, at)
    entity: E = _entity(entity_type)(cursor)
    if cursor.at != cursor.end:
        raise UndecodableError(f"{cursor.end - cursor.at} bytes more than {entity_type.__name__} has")
    return entity


def decode_head(entity_type: type[E], data: bytes) -> tuple[E, int]:
    """The entity at the beginning of `data`, and its end. Raises UndecodableError."""
    cursor = Cursor(data)
    entity: E = _entity(entity_type)(cursor)
    return entity, cursor.at


def _entity(entity_type: Any) -> Read:
    return _compiled(entity_type)


@cache
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

    def read(cursor: Cursor) -> Any:
        values = dict(absent)
        for name, read_field in plain:
            values[name] = read_field(cursor)
        if flexible:
            _read_tagged(cursor, tagged, values)
        return entity_type(**values)

    return read


def _read_tagged(cursor: Cursor, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(cursor.uvarint()):  # an excessive count ends at the first missing element
        tag = cursor.uvarint()
        length = cursor.uvarint()
        start = cursor.skip(length)
        if tag in known:
            name, read_field = known[tag]
            values[name] = read_field(Cursor(cursor.data, start, start + length))


def _field(field: dataclasses.Field[Any], flexible: bool) -> Read:
    """The reader of a field: an array, a structure or a primitive value, each possibly nullable."""
    inner, optional = _without_none(field.type)
    tagged = "tag" in field.metadata  # a tagged field is absent when null, so its structure has no null marker
    if typing.get_origin(inner) is tuple:
        element: Any = typing.get_args(inner)[0]
        read = _entity(element) if dataclasses.is_dataclass(element) else _plain(field, flexible, optional=False)
        return _array(read, flexible, optional)
    if dataclasses.is_dataclass(inner):
        read = _entity(inner)
        return _nullable(read) if optional and not tagged else read
    return _plain(field, flexible, optional)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) is not types.UnionType:
        return annotation, False
    (inner,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return inner, True


def _nullable(read: Read) -> Read:
    """KIP-893: one byte before a structure that may be null."""
    return lambda cursor: None if _fixed(">b")(cursor) < 0 else read(cursor)


def _array(read: Read, flexible: bool, optional: bool) -> Read:
    read_length = Cursor.uvarint if flexible else _fixed(">i")

    def read_array(cursor: Cursor) -> tuple[Any, ...] | None:
        length = read_length(cursor) - flexible
        if length == -1 and optional:
            return None
        if not 0 <= length <= cursor.end - cursor.at:  # an element takes at least a byte
            raise UndecodableError(f"an array of {length} elements in {cursor.end - cursor.at} bytes")
        return tuple([read(cursor) for _ in range(length)])

    return read_array


def _plain(field: dataclasses.Field[Any], flexible: bool, optional: bool) -> Read:
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if kafka_type == "datetime_i64":
        return _read_datetime if optional else _required(_read_datetime)
    # A string's length has 16 bits, that of bytes 32, and a varint in flexible versions.
    read_length = Cursor.uvarint if flexible else _fixed(">h" if kafka_type == "string" else ">i")
    read = _sized(read_length, flexible, _text if kafka_type == "string" else bytes)
    return read if optional else _required(read)


def _sized(read_length: Read, flexible: bool, make: Callable[[bytes], Any]) -> Read:
    def read(cursor: Cursor) -> Any:
        length = read_length(cursor) - flexible
        if length == -1:
            return None
        start = cursor.skip(length)
        return make(cursor.data[start : start + length])

    return read


def _required(read: Read) -> Read:
    def read_required(cursor: Cursor) -> Any:
        value = read(cursor)
        if value is None:
            raise UndecodableError(f"null before {cursor.at} where the schema allows none")
        return value

    return read_required


@cache
def _fixed(form: str) -> Read:
    packed = struct.Struct(form)
    size, unpack_from = packed.size, packed.unpack_from
    return lambda cursor: unpack_from(cursor.data, cursor.skip(size))[0]


def _made(form: str, make: Callable[[Any], Any]) -> Read:
    read = _fixed(form)
    return lambda cursor: make(read(cursor))


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "replace")  # as Java reads it


def _error_code(code: int) -> int:
    try:
        return ErrorCode(code)
    except ValueError:  # of a newer Kafka
        return code


def _timedelta(ms: int) -> datetime.timedelta:
    try:
        return datetime.timedelta(milliseconds=ms)
    except OverflowError as exc:
        raise UndecodableError(f"a time span of {ms} ms") from exc


def _datetime(ms: int) -> datetime.datetime | None:
    if ms == -1:
        return None
    try:
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=ms)
    except OverflowError as exc:
        raise UndecodableError(f"a time of {ms} ms") from exc


_read_datetime = _made(">q", _datetime)
_FIXED: dict[str, Read] = {
    "bool": _fixed(">?"),
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint16": _fixed(">H"),
    "float64": _fixed(">d"),
    "error_code": _made(">h", _error_code),
    "timedelta_i32": _made(">i", _timedelta),
    "timedelta_i64": _made(">q", _timedelta),
    "uuid": _made(">16s", lambda packed: UUID(bytes=packed) if any(packed) else None),
}
