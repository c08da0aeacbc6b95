"""quota_metrics/kafka/primitives.py reads what it writes, and raises only ProtocolError."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka import primitives
from quota_metrics.kafka.primitives import ProtocolError, Reader

METHODS = [
    "int8",
    "int16",
    "int32",
    "boolean",
    "uvarint",
    "uuid",
    "string",
    "nullable_string",
    "compact_string",
    "compact_nullable_string",
    "array_length",
    "compact_array_length",
    "skip_tagged",
]

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


@pytest.mark.parametrize("method", METHODS)
def test_random_bytes_raise_only_protocol_error(method: str) -> None:
    @given(st.binary(max_size=40))
    def check(junk: bytes) -> None:
        reader = Reader(junk)
        try:
            getattr(reader, method)()
        except ProtocolError:
            return
        assert 0 <= reader.offset <= len(junk)

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
