"""Our decoding against kio's encoding, for each response that kio knows; and against bytes that no broker sends."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import typing
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

import pytest
from kio.schema.describe_client_quotas.v0.response import DescribeClientQuotasResponse as QuotasV0
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse as QuotasV1
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.schema.metadata.v12.response import MetadataResponse
from kio.serial import entity_writer
from kio.static.constants import EntityType

from quota_metrics.kafka.decoding import UndecodableError, decode, decode_head

RESPONSES = [
    resolve_name(types[EntityType.response])
    for versions in schema_name_map.values()
    for types in versions.values()
    if EntityType.response in types
]
NO_THROTTLE = bytes(4)


def encoded(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def some(rng: random.Random, entity_type: Any) -> Any:
    """A random entity of the type."""
    return entity_type(**{field.name: some_field(rng, field) for field in dataclasses.fields(entity_type)})


def some_field(rng: random.Random, field: dataclasses.Field[Any]) -> Any:
    annotation: Any = field.type
    options = [part for part in typing.get_args(annotation) if part is not type(None)]
    optional = len(options) == 1 and type(None) in typing.get_args(annotation)
    inner = options[0] if optional else annotation
    if optional and rng.random() < 0.3:
        return None
    if typing.get_origin(inner) is tuple:
        element: Any = typing.get_args(inner)[0]
        return tuple(some_one(rng, field, element) for _ in range(rng.randrange(3)))
    return some_one(rng, field, inner)


def some_one(rng: random.Random, field: dataclasses.Field[Any], inner: Any) -> Any:
    if dataclasses.is_dataclass(inner):
        return some(rng, inner)
    text = "".join(rng.choices("aä€😀 ", k=rng.randrange(200)))
    return {
        "bool": rng.random() < 0.5,
        "int8": rng.randrange(-128, 128),
        "int16": rng.randrange(-(2**15), 2**15),
        "int32": rng.randrange(-(2**31), 2**31),
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


def test_every_response_is_read_as_kio_wrote_it() -> None:
    rng = random.Random(1)
    for response_type in RESPONSES:
        response = some(rng, response_type)
        assert decode(response_type, encoded(response)) == response


def test_a_claim_of_many_elements_is_refused_at_once() -> None:
    """The bytes that make kio 0.6.5 abort the process."""
    for response_type, claim in (
        (MetadataResponse, NO_THROTTLE + b"\xff\xff\xff\xff\x0f"),
        (QuotasV1, NO_THROTTLE + b"\x00\x00\x00\xff\xff\xff\xff\x7f"),
        (QuotasV0, NO_THROTTLE + b"\x00\x00\xff\xff\x7f\xff\xff\xff"),
    ):
        with pytest.raises(UndecodableError, match=r"an array of|a varint"):
            decode(response_type, claim)


def test_unknown_tagged_fields_are_passed_over() -> None:
    body = NO_THROTTLE + b"\x00\x00\x00\x01"  # no error, no message, no entries
    known = decode(QuotasV1, body + b"\x00")
    assert decode(QuotasV1, body + b"\x01\x05\x03abc") == known


def test_an_error_code_of_a_newer_kafka_stays_a_number() -> None:
    response = decode(QuotasV0, NO_THROTTLE + b"\x27\x10\xff\xff\xff\xff\xff\xff")
    assert (response.error_code, response.entries) == (10_000, None)


def test_bytes_beyond_the_entity_are_refused_and_a_head_leaves_them() -> None:
    body = NO_THROTTLE + b"\x00\x00\xff\xff\xff\xff\xff\xff"
    with pytest.raises(UndecodableError, match="2 bytes more"):
        decode(QuotasV0, body + b"ab")
    assert decode_head(QuotasV0, body + b"ab")[1] == len(body)


def test_null_where_the_schema_has_none_is_refused() -> None:
    with pytest.raises(UndecodableError, match="null"):
        decode(QuotasV1, NO_THROTTLE + b"\x00\x00\x00\x02\x02\x00")


@pytest.mark.parametrize("response_type", [QuotasV0, QuotasV1, MetadataResponse])
def test_junk_is_refused_or_read_and_nothing_else(response_type: Any) -> None:
    rng = random.Random(7)
    for _ in range(300):
        good = bytearray(encoded(some(rng, response_type)))
        for _ in range(rng.randrange(1, 4)):
            good[rng.randrange(len(good))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        junk = bytes(good[: rng.randrange(len(good) + 1)]) if rng.random() < 0.5 else bytes(good)
        try:
            decode(response_type, junk)
        except UndecodableError:
            continue
