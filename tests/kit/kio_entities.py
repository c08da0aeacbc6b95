"""Kafka's messages by kio, a second implementation: random entities, encoding and decoding.

`random_entity` costs a hundredth of hypothesis' `from_type`, which derives a strategy for each of kio's 1,800 types.
"""

import dataclasses
import datetime
import importlib
import io
import random
import typing
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer


def message_type(api: str, version: int, side: str) -> Any:
    """The class of a message: `message_type("find_coordinator", 4, "response")`."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{side}")
    return getattr(module, "".join(word.capitalize() for word in api.split("_")) + side.capitalize())


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decode(entity_type: Any, data: bytes) -> Any:
    """The entity that `data` holds, to its last byte."""
    entity, size = entity_reader(entity_type)(data, 0)
    assert size == len(data)
    return entity


def entity_of_fields(entity_type: Any, fields: Mapping[str, Any]) -> Any:
    """The entity with these fields, structures as mappings; those that the version lacks are left out, those that are
    not given are null, zero or empty."""
    return entity_type(
        **{field.name: _given(field, fields.get(field.name)) for field in dataclasses.fields(entity_type)}
    )


def _type_of(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """And whether it may be null."""
    annotation: Any = field.type
    options = [part for part in typing.get_args(annotation) if part is not type(None)]
    optional = len(options) == 1 and type(None) in typing.get_args(annotation)
    return options[0] if optional else annotation, optional


def _given(field: dataclasses.Field[Any], value: Any) -> Any:
    inner, optional = _type_of(field)
    if value is None and optional:
        return None
    if typing.get_origin(inner) is tuple:
        element: Any = typing.get_args(inner)[0]
        is_structure = dataclasses.is_dataclass(element)
        return tuple(entity_of_fields(element, one) if is_structure else one for one in value or ())
    if dataclasses.is_dataclass(inner):
        return entity_of_fields(inner, value or {})
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "error_code":
        return ErrorCode(value or 0)
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value or 0)
    empty = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}
    return empty.get(kafka_type, 0) if value is None else value


def random_entity(rng: random.Random, entity_type: Any) -> Any:
    return entity_type(**{field.name: _field(rng, field) for field in dataclasses.fields(entity_type)})


def _field(rng: random.Random, field: dataclasses.Field[Any]) -> Any:
    inner, optional = _type_of(field)
    if optional and rng.random() < 0.3:
        return None
    if typing.get_origin(inner) is tuple:
        element: Any = typing.get_args(inner)[0]
        return tuple(_value(rng, field, element) for _ in range(rng.randrange(3)))
    return _value(rng, field, inner)


def _value(rng: random.Random, field: dataclasses.Field[Any], inner: Any) -> Any:
    if dataclasses.is_dataclass(inner):
        return random_entity(rng, inner)
    text = "".join(rng.choices("aä€😀 ", k=rng.randrange(200)))
    return {
        "bool": rng.random() < 0.5,
        "int8": rng.randrange(-128, 128),
        "int16": rng.randrange(-(2**15), 2**15),
        "int32": rng.choice([-1, 0, rng.randrange(-(2**31), 2**31)]),
        "int64": rng.randrange(-(2**63), 2**63),
        "uint16": rng.randrange(2**16),
        "float64": rng.uniform(-1e300, 1e300),
        "string": text,
        "bytes": text.encode(),
        "records": text.encode(),
        "uuid": rng.choice([None, UUID(int=rng.getrandbits(128))]),
        "error_code": rng.choice(list(ErrorCode)),
        "timedelta_i32": datetime.timedelta(milliseconds=rng.randrange(2**31)),
        "timedelta_i64": datetime.timedelta(milliseconds=rng.randrange(2**40)),
        "datetime_i64": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        + datetime.timedelta(seconds=rng.randrange(10**6)),
    }[field.metadata["kafka_type"]]
