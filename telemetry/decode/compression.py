"""Decompression of Kafka's codecs within a limit: allocates at most `max_bytes`, whatever size the data states.

The checks around each call work around the libraries: zstandard prefers a frame's stated size to any limit and ignores
data after a frame of unknown size; its streams end without an error where data is truncated; python-lz4 and zlib report
a complete frame only by `eof`; snappy allocates the size that the data states.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import cramjam
import lz4.frame
import zstandard

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


class _Decompressor(Protocol):
    """The common interface of zlib's and python-lz4's decompressors."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


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


def _gzip(data: bytes, max_bytes: int) -> bytes:
    return _frames("gzip", lambda: zlib.decompressobj(31), data, max_bytes)


def _lz4(data: bytes, max_bytes: int) -> bytes:
    return _frames("lz4", lz4.frame.LZ4FrameDecompressor, data, max_bytes)


def _frames(codec: str, new: Callable[[], Any], data: bytes, max_bytes: int) -> bytes:
    """One or more complete frames and nothing else."""
    output: list[bytes] = []
    rest, room = data, max_bytes
    while rest or not output:
        _check_count(codec, output, data)
        frame: _Decompressor = new()
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


_CODECS: tuple[Callable[[bytes, int], bytes], ...] = (_none, _gzip, _snappy, _lz4, _zstd)
