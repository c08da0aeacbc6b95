"""Kafka's types and kio's entities are read as they are written; of other bytes comes nothing but ProtocolError."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.describe_client_quotas.v0.response import DescribeClientQuotasResponse as QuotasV0
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse as QuotasV1
from kio.schema.index import schema_name_map
from kio.schema.metadata.v12.response import MetadataResponse
from kio.static.constants import EntityType

from quota_metrics.kafka import primitives
from quota_metrics.kafka.frames import decode_head
from quota_metrics.kafka.primitives import ProtocolError, Reader
from tests.kit.kio_entities import encode, random_entity

TEXT = st.text(st.characters(codec="utf-8"), max_size=300)


def written(write: Callable[..., None], value: Any) -> bytes:
    out = bytearray()
    write(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("int8", st.integers(-(2**7), 2**7 - 1)),
        ("int16", st.integers(-(2**15), 2**15 - 1)),
        ("int32", st.integers(-(2**31), 2**31 - 1)),
        ("boolean", st.booleans()),
        ("uvarint", st.integers(0, 2**32 - 1)),
        ("string", TEXT),
        ("nullable_string", st.none() | TEXT),
        ("compact_string", TEXT),
        ("compact_nullable_string", st.none() | TEXT),
        ("array_length", st.integers(-1, 0)),
        ("compact_array_length", st.integers(-1, 0)),
    ],
)
def test_written_values_are_read_back(name: str, values: st.SearchStrategy[Any]) -> None:
    @given(values, st.binary(max_size=5), st.binary(max_size=5))
    def check(value: Any, before: bytes, after: bytes) -> None:
        encoded = written(getattr(primitives, f"write_{name}"), value)
        reader = Reader(before + encoded + after, len(before))
        assert getattr(reader, name)() == value
        assert reader.offset == len(before) + len(encoded)
        assert reader.remaining == len(after)

    check()


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("uvarint", b"\xff\xff\xff\xff\x10"),
        ("uvarint", b"\x80\x80\x80\x80\x80\x01"),
        ("string", b"\xff\xff"),
        ("string", b"\xff\xfe"),
        ("nullable_string", b"\xff\xfe"),
        ("compact_string", b"\x00"),
        ("array_length", b"\xff\xff\xff\xfe"),
    ],
)
def test_invalid_lengths_and_varints_raise_protocol_error(method: str, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        getattr(Reader(data), method)()


def test_array_length_is_bounded_by_minimum_element_size() -> None:
    data = written(primitives.write_array_length, 2) + bytes(7)
    assert Reader(data).array_length(3) == 2
    with pytest.raises(ProtocolError):
        Reader(data).array_length(4)


@pytest.mark.parametrize("at", [-1, 4])
def test_offset_out_of_bounds_raises_protocol_error(at: int) -> None:
    for read in (lambda: Reader(b"abc").skip(at), lambda: Reader(b"abc", at)):
        with pytest.raises(ProtocolError):
            read()


def test_unknown_tagged_fields_are_skipped() -> None:
    reader = Reader(b"\x02\x00\x01a\x09\x02bc" + b"\x07")
    reader.skip_tagged()
    assert reader.int8() == 7


def test_claimed_lengths_do_not_allocate_memory() -> None:
    claims = [
        ("array_length", struct.pack(">i", 2**31 - 1)),
        ("compact_array_length", b"\xff\xff\xff\xff\x0f"),
        ("skip_tagged", b"\xff\xff\xff\xff\x0f"),
        ("skip_tagged", b"\xe9\x07" + b"\x01\x00" * 1_001),  # a million would take seconds
    ]
    tracemalloc.start()
    try:
        for method, claim in claims:
            with pytest.raises(ProtocolError):
                getattr(Reader(claim + b"x"), method)()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_invalid_utf8_is_replaced_as_java_does() -> None:
    assert Reader(b"\x00\x02\xffa").string() == "\ufffda"


def test_writing_oversized_string_raises_protocol_error() -> None:
    for write in (primitives.write_string, primitives.write_compact_string):
        with pytest.raises(ProtocolError):
            written(write, "x" * 32_768)


NO_THROTTLE = bytes(4)


@pytest.mark.slow
def test_every_response_decodes_as_kio_encoded_it() -> None:
    rng = random.Random(1)
    for versions in schema_name_map.values():
        for types in versions.values():
            if EntityType.response in types:
                response_type = resolve_name(types[EntityType.response])
                response = random_entity(rng, response_type)
                encoded = encode(response)
                assert decode_head(response_type, encoded) == (response, len(encoded))


def test_oversized_array_claim_is_refused() -> None:
    """The bytes that make kio 0.6.5 abort the process."""
    for response_type, claim in (
        (MetadataResponse, NO_THROTTLE + b"\xff\xff\xff\xff\x0f"),
        (QuotasV1, NO_THROTTLE + b"\x00\x00\x00\xff\xff\xff\xff\x7f"),
        (QuotasV0, NO_THROTTLE + b"\x00\x00\xff\xff\x7f\xff\xff\xff"),
    ):
        with pytest.raises(ProtocolError, match=r"cannot read \d+ elements|a varint"):
            decode_head(response_type, claim)


def test_unknown_tagged_fields_of_an_entity_are_skipped() -> None:
    body = NO_THROTTLE + b"\x00\x00\x00\x01"  # no error, no message, no entries
    (entity, end), (known, _) = (decode_head(QuotasV1, body + tags) for tags in (b"\x01\x05\x03abc!", b"\x00"))
    assert (entity, end) == (known, len(body) + 6)  # not what is behind it


def test_unknown_error_code_is_kept_as_a_number() -> None:
    response, _ = decode_head(QuotasV0, NO_THROTTLE + b"\x27\x10\xff\xff\xff\xff\xff\xff")
    assert (response.error_code, response.entries) == (10_000, None)


def test_null_in_a_non_nullable_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="null"):
        decode_head(QuotasV1, NO_THROTTLE + b"\x00\x00\x00\x02\x02\x00")
