"""Decodes Kafka responses to kio's entities. Sans-I/O.

kio 0.6.5 allocates memory by an array's stated length before it checks that the bytes are present, which aborts the
process; it also refuses unknown tagged fields, which KIP-482 allows a newer broker to send. Therefore kio's classes
only serve as the schema (their dataclass fields define the wire types), and this module reads with bounds checks.

A thread that decodes holds the interpreter for 5 ms at a time, while frames wait; so it may be `interrupted` often.
"""

from __future__ import annotations

import dataclasses
import datetime
import threading
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from quota_metrics.kafka.primitives import ProtocolError, Reader

E = TypeVar("E")
Read = Callable[[Reader], Any]

_ELEMENTS: Final = 32  # between two interruptions


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
