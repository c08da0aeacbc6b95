"""Reads (with bounds checks) and writes Kafka's primitive types: of clients, and of brokers' answers. Sans-I/O.

Source: the Kafka protocol guide's "Protocol Primitive Types" and KIP-482 (compact types, tagged fields).
Every length sent by the peer is compared with the bytes present before it is used.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import mypyc_attr

INT16_MAX: Final = 32_767
_MAX_TAGGED_FIELDS: Final = 1_000  # of one structure; Kafka's messages have at most a few
_UVARINT_MAX_BYTES: Final = 5  # an unsigned varint is 32 bits wide (ByteUtils.readUnsignedVarint)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


_FLOAT64: Final = struct.Struct(">d")


class ProtocolError(ValueError):
    """Bytes that violate the Kafka protocol; the connection is closed."""


@mypyc_attr(acyclic=True)  # not known to the garbage collector
class Reader:
    """Reads consecutive values from `data`, beginning at `offset`, up to `end` (-1: all).

    Each method raises ProtocolError when the value is truncated or a length is invalid.
    Invalid UTF-8 is decoded with replacement characters, as Java does.
    """

    __slots__ = ("_data", "_end", "offset")

    def __init__(self, data: bytes, offset: int = 0, end: int = -1) -> None:
        self._data = data
        self._end = len(data) if end < 0 else end
        if not 0 <= offset <= self._end:
            raise ProtocolError(f"cannot read from offset {offset} of {self._end} bytes")
        self.offset = offset

    @property
    def remaining(self) -> int:
        return self._end - self.offset

    def int8(self) -> int:
        byte = self._data[self._number_at(1)]
        return byte if byte < 0x80 else byte - 0x100

    def int16(self) -> int:
        return int16_at(self._data, self._number_at(2))

    def int32(self) -> int:
        return int32_at(self._data, self._number_at(4))

    def int64(self) -> int:
        value: int = _INT64.unpack_from(self._data, self._number_at(8))[0]
        return value

    def uint16(self) -> int:
        return self.int16() & 0xFFFF

    def float64(self) -> float:
        value: float = _FLOAT64.unpack_from(self._data, self._number_at(8))[0]
        return value

    def boolean(self) -> bool:
        """Every byte except 0 is true (ByteBufferAccessor.readByte() != 0)."""
        return self._data[self._number_at(1)] != 0

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = 0
        for index in range(_UVARINT_MAX_BYTES):
            at = self.offset + index
            if at >= self._end:
                raise ProtocolError(f"cannot read a varint at offset {self.offset}: it is truncated")
            byte = self._data[at]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value > 0xFFFF_FFFF:
                    break
                self.offset = at + 1
                return value
        raise ProtocolError(f"cannot read a varint at offset {self.offset}: more than 32 bits")

    def uuid(self) -> bytes:
        """16 bytes, big endian."""
        return self.raw(16)

    def string(self) -> str:
        return _present(self.nullable_string())

    def nullable_string(self) -> str | None:
        return self._text(self.int16())

    def compact_string(self) -> str:
        return _present(self.compact_nullable_string())

    def compact_nullable_string(self) -> str | None:
        return self._text(self.uvarint() - 1)

    def array_length(self, element_bytes: int = 1) -> int:
        """Number of elements that follow, -1 for a null array. `element_bytes`: the minimum size of an element."""
        return self._count(self.int32(), element_bytes)

    def compact_array_length(self, element_bytes: int = 1) -> int:
        """`array_length` for the compact arrays of flexible versions."""
        return self._count(self.uvarint() - 1, element_bytes)

    def raw(self, length: int) -> bytes:
        start, self.offset = self.offset, self._after(length)
        end = self.offset
        return self._data[start:end]

    def part(self, length: int) -> Reader:
        """A reader of the next `length` bytes, which are passed."""
        start, self.offset = self.offset, self._after(length)
        return Reader(self._data, start, self.offset)

    def skip(self, n: int) -> None:
        self.offset = self._after(n)

    def skip_tagged(self) -> None:
        """Skips the tagged fields at the end of a structure of a flexible version (KIP-482); all are optional.

        A peer that sends very many does so to keep this process busy: a million take seconds.
        """
        count = self._count(self.uvarint(), 2)
        if count > _MAX_TAGGED_FIELDS:
            raise ProtocolError(f"cannot read {count} tagged fields: at most {_MAX_TAGGED_FIELDS}")
        for _ in range(count):
            self.uvarint()
            self.skip(self.uvarint())

    def between(self, start: int, end: int) -> bytes:
        """The raw bytes of [start, end)."""
        return self._data[start:end]

    def _number_at(self, size: int) -> int:
        """The offset of a number of `size` bytes, which is passed."""
        at = self.offset
        if at + size > self._end:
            raise ProtocolError(f"cannot read {size} bytes at offset {at}: {self.remaining} left")
        self.offset = at + size
        return at

    def _text(self, length: int) -> str | None:
        if length > INT16_MAX:  # even where the length field allows more, as in Kafka's own readers
            raise ProtocolError(f"cannot read a string of {length} bytes: at most {INT16_MAX}")
        return None if length == -1 else str(self.raw(length), "utf-8", "replace")

    def _count(self, count: int, element_bytes: int) -> int:
        if count < -1 or count * element_bytes > self.remaining:
            raise ProtocolError(f"cannot read {count} elements at offset {self.offset}: {self.remaining} bytes left")
        return count

    def _after(self, length: int) -> int:
        if not 0 <= length <= self.remaining:
            raise ProtocolError(f"cannot read {length} bytes at offset {self.offset}: {self.remaining} left")
        return self.offset + length


def int16_at(data: bytes, at: int) -> int:
    """The big-endian number at an offset; faster than struct in compiled code. The bytes must be there."""
    value = data[at] << 8 | data[at + 1]
    return value if value < 0x8000 else value - 0x1_0000


def int32_at(data: bytes, at: int) -> int:
    """Like `int16_at`."""
    value = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    return value if value < 0x8000_0000 else value - 0x1_0000_0000


def write_int8(out: bytearray, value: int) -> None:
    out.append(value & 0xFF)


def write_int16(out: bytearray, value: int) -> None:
    out += _INT16.pack(value)


def write_int32(out: bytearray, value: int) -> None:
    out += _INT32.pack(value)


def write_boolean(out: bytearray, value: bool) -> None:
    out.append(value)


def write_uvarint(out: bytearray, value: int) -> None:
    """`value`: 0 .. 2^32-1."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_string(out: bytearray, text: str) -> None:
    """Raises ProtocolError when the text is too long for the length prefix."""
    encoded = _encoded(text)
    write_int16(out, len(encoded))
    out += encoded


def write_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        write_int16(out, -1)
    else:
        write_string(out, text)


def write_compact_string(out: bytearray, text: str) -> None:
    """Raises ProtocolError when the text is longer than Kafka's strings may be."""
    encoded = _encoded(text)
    write_uvarint(out, len(encoded) + 1)
    out += encoded


def write_compact_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        write_uvarint(out, 0)
    else:
        write_compact_string(out, text)


def write_array_length(out: bytearray, count: int) -> None:
    """`count` -1 writes a null array."""
    write_int32(out, count)


def write_compact_array_length(out: bytearray, count: int) -> None:
    """`count` -1 writes a null array."""
    write_uvarint(out, count + 1)


def write_no_tagged(out: bytearray) -> None:
    """Writes an empty set of tagged fields, which ends a structure of a flexible version."""
    out.append(0)


def _encoded(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > INT16_MAX:
        raise ProtocolError(f"cannot write a string of {len(encoded)} bytes: at most {INT16_MAX}")
    return encoded


def _present(text: str | None) -> str:
    if text is None:
        raise ProtocolError("cannot read a string: null where Kafka's schema allows none")
    return text
