"""What a payload may cost: its size once decompressed, and the structure of its protobuf. Sans-I/O.

Decompression of Kafka's codecs allocates at most `max_bytes`, whatever size the data states. The checks around each
call work around the libraries: zstandard prefers a frame's stated size to any limit and ignores data after a frame of
unknown size; its streams end without an error where data is truncated; python-lz4 and zlib report a complete frame
only by `eof`; snappy allocates the size that the data states.

Two bytes of payload can become a row, or a message object of over 80 bytes. `check_structure` walks the encoded
fields (https://protobuf.dev/programming-guides/encoding/) before protobuf allocates anything and stops at the first
exceeded budget, so that its own cost is bounded by `PayloadLimits.fields`. otlp.decode checks the budgets of text and
of the buckets of one point. Nesting is limited by protobuf itself, to 100 messages.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import cramjam
import lz4.frame
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")  # org.apache.kafka.common.record.CompressionType, by id

_MAX_FRAMES = 64  # clients send one; 100,000 empty frames would cost time without reaching the size limit
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16  # magic, version i32, lowest compatible version i32
_ZSTD_CHECKSUM_BYTES = 4
_ZSTD_RLE, _ZSTD_RESERVED = 1, 3  # block types, RFC 8878 section 3.1.1.2.2


class DecompressError(ValueError):
    """The data is damaged, truncated, or followed by other data."""


class TooLarge(ValueError):  # noqa: N818 - Kafka's TELEMETRY_TOO_LARGE
    """The data is larger than allowed once decompressed."""


class _PerThread(threading.local):
    """Creating a zstd context takes 7 us, using one takes 1 us; threads cannot share contexts."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_contexts = _PerThread()


def decompress(compression_type: int, data: bytes, *, max_bytes: int) -> bytes:
    """Decompress with the codec of this Kafka id, up to `max_bytes` inclusive. Raises DecompressError, TooLarge."""
    if not 0 <= compression_type < len(_CODECS):
        raise DecompressError(f"cannot decompress {len(data)} bytes: no codec has the id {compression_type}")
    try:
        return _CODECS[compression_type](data, max_bytes)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, struct.error) as exc:
        raise _broken(CODEC_NAMES[compression_type], data, exc) from exc


def codec_name(compression_type: int) -> str:
    """The name of a codec by Kafka's id; the id as text when there is no such codec."""
    return CODEC_NAMES[compression_type] if 0 <= compression_type < len(CODEC_NAMES) else str(compression_type)


def _none(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _frames(codec: str, new: Callable[[], Any], data: bytes, max_bytes: int) -> bytes:
    """One or more complete frames and nothing else. `new`: a decompressor of zlib or python-lz4."""
    output: list[bytes] = []
    rest, room = data, max_bytes
    while rest or not output:
        _check_count(codec, output, data)
        frame = new()
        # One byte more than allowed, to tell a frame that ends exactly at the limit from a longer one.
        part = frame.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_large(max_bytes)
        if not frame.eof:
            raise _broken(codec, data, "it is cut short")
        output.append(part)
        room -= len(part)
        rest = frame.unused_data or b""
    return b"".join(output)


def _snappy(data: bytes, max_bytes: int) -> bytes:
    """The xerial framing of Java's SnappyOutputStream, or a raw block, as librdkafka sends it."""
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, max_bytes, max_bytes)
    output: list[bytes] = []
    at, room = _XERIAL_HEADER_BYTES, max_bytes
    while at != len(data):
        (length,) = struct.unpack_from(">I", data, at)
        at += 4
        if length > len(data) - at:
            raise _broken("snappy", data, f"a block of {length} bytes is cut short")
        output.append(_snappy_block(data[at : at + length], room, max_bytes))
        room -= len(output[-1])
        at += length
    return b"".join(output)


def _snappy_block(block: bytes, room: int, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > room:
        raise _too_large(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _zstd(data: bytes, max_bytes: int) -> bytes:
    output: list[bytes] = []
    rest, room = data, max_bytes
    while rest or not output:
        _check_count("zstd", output, data)
        length, content_bytes = _zstd_frame(rest)
        if content_bytes > room:
            raise _too_large(max_bytes)
        try:
            # 0 would mean no limit
            part = _contexts.zstd.decompress(rest[:length], max_output_size=max(room, 1))
        except zstandard.ZstdError as exc:
            if content_bytes < 0 and "did not decompress full frame" in str(exc):
                raise _too_large(max_bytes) from exc  # the frame is complete: the limit was the cause
            raise
        if len(part) > room:
            raise _too_large(max_bytes)
        output.append(part)
        room -= len(part)
        rest = rest[length:]
    return b"".join(output)


def _zstd_frame(data: bytes) -> tuple[int, int]:
    """Length of the frame at the beginning of `data`, and of its content (-1: not stated)."""
    checksum_bytes = _ZSTD_CHECKSUM_BYTES if zstandard.get_frame_parameters(data).has_checksum else 0
    at, last = zstandard.frame_header_size(data), False
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if at + 3 > len(data) or kind == _ZSTD_RESERVED:
            raise _broken("zstd", data, "it is cut short" if at + 3 > len(data) else "reserved block type")
        at += 3 + (1 if kind == _ZSTD_RLE else size)
    at += checksum_bytes
    if at > len(data):
        raise _broken("zstd", data, "it is cut short")
    return at, zstandard.frame_content_size(data)


def _check_count(codec: str, output: list[bytes], data: bytes) -> None:
    if len(output) == _MAX_FRAMES:
        raise _broken(codec, data, f"more than {_MAX_FRAMES} frames")


def _broken(codec: str, data: bytes, cause: object) -> DecompressError:
    return DecompressError(f"cannot decompress {len(data)} bytes of {codec}: {cause}")


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"cannot decompress: more than {max_bytes} bytes")


_CODECS: tuple[Callable[[bytes, int], bytes], ...] = (
    _none,
    partial(_frames, "gzip", lambda: zlib.decompressobj(31)),
    _snappy,
    partial(_frames, "lz4", lz4.frame.LZ4FrameDecompressor),
    _zstd,
)


_MIN_ELEMENT_BYTES = 2  # tag and length of an empty message
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_GROUPS = (3, 4)  # start and end of a group; its fields are counted with the enclosing message
_MAX_DEPTH = 100  # protobuf's own limit
_CONTINUED = bytes(range(0x80, 0x100))  # the bytes of a varint except its last
_BUCKET_FIELDS = frozenset(("bucket_counts", "explicit_bounds", "quantile_values"))
POINTS_OF_SMALLEST: Final = 500  # of a push of no bytes; PushSpool charges as many


class DecodeError(ValueError):
    """The payload cannot be parsed as MetricsData."""


class OverBudget(ValueError):  # noqa: N818 - a condition, as TooLarge
    """The payload exceeds the budget of one push, or of one client per minute."""


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Budgets of one push. Attributes over `attributes` per list and text over `chars` are cut, not refused."""

    points: int = 50_000
    attributes: int = 64
    chars: int = 1024
    fields: int = 2_000_000  # encoded fields of any kind
    messages: int = 600_000  # embedded messages of any kind
    pairs: int = 250_000  # KeyValues, including repeated keys
    items: int = 65_536  # elements of array and key-value list attributes
    buckets: int = 500_000  # counts, bounds and quantiles of all histogram points
    point_buckets: int = 8_192  # the same, per point
    text_bytes: int = 16 << 20  # stored attributes of new series and histograms, counted once per row
    points_per_byte: float = 2.0  # of the payload as it arrived; see `points_of_push`

    def points_of_push(self, nbytes: int) -> int:
        """The number of points that a push may carry in a payload of `nbytes` bytes, as it arrived.

        Real clients send 15 to 30 bytes a point, compressed (Java 4.3 with zstd, librdkafka, franz-go), idle ones of
        many partitions down to one. What decompresses to more only costs others their turn.
        """
        return min(self.points, POINTS_OF_SMALLEST + int(self.points_per_byte * nbytes))


def check_structure(payload: bytes, limits: PayloadLimits) -> None:
    """Raises OverBudget, or DecodeError when the bytes are not encoded protobuf."""
    _check(payload, limits, _METRICS_DATA)


def check_outline(payload: bytes, limits: PayloadLimits, descriptor: Any = MetricsData.DESCRIPTOR) -> None:
    """As check_structure, but counts data points without looking into them: for requests that carry many.

    `descriptor`: of the message, if it is a part of MetricsData.
    """
    if descriptor.full_name not in _OUTLINES:
        _OUTLINES[descriptor.full_name] = _fields(descriptor, {}, False)
    _check(payload, limits, _OUTLINES[descriptor.full_name])


def _check(payload: bytes, limits: PayloadLimits, fields: dict[int, _Field]) -> None:
    # A shorter payload cannot exceed any of these budgets.
    fewest = min(limits.points, limits.fields, limits.messages, limits.pairs, limits.items)
    if len(payload) > _MIN_ELEMENT_BYTES * fewest:
        try:
            _Scan(payload, limits).message(0, len(payload), fields, 0)
        except IndexError as exc:
            raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: truncated") from exc


class _Field(NamedTuple):
    """How the scan treats a field of a message. `budget`: the budget that its elements count against.

    `message`: the fields of an embedded message, None when the scan does not look into it.
    """

    message: dict[int, _Field] | None
    budget: str
    packed: str = ""  # how a packed field has its elements: "varint" or "fixed64"


def _fields(descriptor: Any, seen: dict[str, dict[int, _Field]], into_points: bool) -> dict[int, _Field]:
    """The counted fields of a message, by number. Message types may be recursive."""
    if descriptor.full_name in seen:
        return seen[descriptor.full_name]
    fields = seen[descriptor.full_name] = {}
    for field in descriptor.fields:
        if field.message_type is None:
            if field.name in _BUCKET_FIELDS:
                packed = "varint" if field.type == field.TYPE_UINT64 else "fixed64"
                fields[field.number] = _Field(None, "buckets", packed)
            continue
        if field.name == "data_points":
            budget = "points"
        elif field.name in _BUCKET_FIELDS:
            budget = "buckets"
        elif field.name == "values" and field.containing_type.name in ("ArrayValue", "KeyValueList"):
            budget = "items"
        else:
            budget = "pairs" if field.message_type.name == "KeyValue" else "messages"
        is_opaque = budget == "points" and not into_points
        message = None if is_opaque else _fields(field.message_type, seen, into_points)
        fields[field.number] = _Field(message, budget)
    return fields


class _Scan:
    """The scan of one payload; raises as soon as a count exceeds its budget."""

    def __init__(self, payload: bytes, limits: PayloadLimits) -> None:
        self._payload = payload
        self._limits = limits
        self._left = {name: getattr(limits, name) for name in ("points", "pairs", "items", "buckets")}
        self._left_fields = limits.fields
        self._left_messages = limits.messages

    def message(self, at: int, end: int, fields: dict[int, _Field], depth: int) -> None:
        """Scans the message from `at` to `end`. Raises OverBudget, DecodeError, IndexError (truncated)."""
        if depth > _MAX_DEPTH:
            raise DecodeError(f"cannot decode {len(self._payload)} bytes as MetricsData: nested too deeply")
        payload = self._payload
        while at < end:
            self._left_fields -= 1
            if self._left_fields < 0:
                raise self._over("fields")
            tag, at = _varint(payload, at)
            number, wire_type = tag >> 3, tag & 7
            field = fields.get(number)
            if wire_type == _LENGTH_DELIMITED:
                length, at = _varint(payload, at)
                if length > end - at:
                    raise IndexError
                if field is not None:
                    self._embedded(field, at, at + length, depth)
                at += length
                continue
            if field is not None and field.packed:
                self._take("buckets", 1)
            at = _behind_scalar(payload, at, wire_type)
        if at > end:
            raise IndexError

    def _embedded(self, field: _Field, at: int, end: int, depth: int) -> None:
        if field.packed:
            is_varint = field.packed == "varint"
            elements = len(self._payload[at:end].translate(None, _CONTINUED)) if is_varint else (end - at) // 8
            self._take("buckets", elements)
            return
        self._left_messages -= 1
        if self._left_messages < 0:
            raise self._over("messages")
        if field.budget != "messages":
            self._take(field.budget, 1)
        if field.message is not None:
            self.message(at, end, field.message, depth + 1)

    def _take(self, budget: str, count: int) -> None:
        self._left[budget] -= count
        if self._left[budget] < 0:
            raise self._over(budget)

    def _over(self, budget: str) -> OverBudget:
        return over_budget(budget, getattr(self._limits, budget))


def data_points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else []


def points_in(resource_metrics: Any) -> int:
    return sum(len(data_points(metric)) for scope in resource_metrics.scope_metrics for metric in scope.metrics)


def over_budget(budget: str, limit: int) -> OverBudget:
    """The refusal of a push that exceeds the budget of this name."""
    return OverBudget(f"cannot keep the push: more than {limit} {budget}")


class EncodedField(NamedTuple):
    """Where a field of a message is. `content`: where an embedded message begins, None for other kinds of fields."""

    number: int
    start: int
    content: int | None
    end: int


def encoded_fields(message: bytes) -> Iterator[EncodedField]:
    """Yields the fields of the outermost level. Raises DecodeError at the first whose end is not known."""
    at = 0
    try:
        while at < len(message):
            tag, content = _varint(message, at)
            if tag & 7 == _LENGTH_DELIMITED:
                length, content = _varint(message, content)
                field = EncodedField(tag >> 3, at, content, content + length)
            else:
                field = EncodedField(tag >> 3, at, None, _behind_scalar(message, content, tag & 7))
            if field.end > len(message):
                raise IndexError
            yield field
            at = field.end
    except IndexError as exc:
        raise DecodeError(f"cannot decode {len(message)} bytes of protobuf: truncated") from exc


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and its end. Raises IndexError, DecodeError."""
    byte = payload[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        at += 1
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: a varint is too long")


def _behind_scalar(payload: bytes, at: int, wire_type: int) -> int:
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _VARINT:
        return _varint(payload, at)[1]
    if wire_type == _FIXED32:
        return at + 4
    if wire_type in _GROUPS:
        return at
    raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData: wire type {wire_type}")


_METRICS_DATA = _fields(MetricsData.DESCRIPTOR, {}, True)
_OUTLINES: dict[str, dict[int, _Field]] = {}  # by message, a few
