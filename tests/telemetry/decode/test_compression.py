"""Every codec of Kafka: valid, truncated, with trailing bytes, and as a decompression bomb."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.decode.bounds import DecompressError, TooLarge, decompress

MIB = 1 << 20
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def xerial(data: bytes, block_bytes: int = 32 * 1024) -> bytes:
    """As org.xerial.snappy.SnappyOutputStream writes it."""
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes])) for at in range(0, len(data), block_bytes)
    ]
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def zstd_with_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_without_size(data: bytes) -> bytes:
    """As librdkafka and Java's ZstdOutputStream stream it."""
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return stream.compress(data) + stream.flush()


def zstd_two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstd_without_size(data[:half]) + zstd_with_size(data[half:])


def gzip_two_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


def gzip_stored(data: bytes) -> bytes:
    """librdkafka's level 0: stored blocks."""
    return gzip.compress(data, 0)


CODECS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (NONE, bytes),
    (GZIP, gzip.compress),
    (GZIP, gzip_stored),
    (GZIP, gzip_two_members),
    (SNAPPY, raw_snappy),
    (SNAPPY, xerial),
    (LZ4, lz4.frame.compress),
    (ZSTD, zstd_with_size),
    (ZSTD, zstd_without_size),
    (ZSTD, zstd_two_frames),
]
COMPRESSED = CODECS[1:]
each_codec = pytest.mark.parametrize(("codec", "compress"), CODECS, ids=lambda v: getattr(v, "__name__", ""))
each_compressed = pytest.mark.parametrize(("codec", "compress"), COMPRESSED, ids=lambda v: getattr(v, "__name__", ""))


@each_codec
@given(data=st.binary(max_size=2000) | st.integers(1, 200_000).map(bytes))
@settings(max_examples=25, deadline=None)
def test_round_trip_up_to_the_limit(codec: int, compress: Callable[[bytes], bytes], data: bytes) -> None:
    assert decompress(codec, compress(data), max_bytes=len(data)) == data


@each_codec
@given(data=st.binary(min_size=1, max_size=2000))
@settings(max_examples=25, deadline=None)
def test_one_byte_over_the_limit_is_too_large(codec: int, compress: Callable[[bytes], bytes], data: bytes) -> None:
    with pytest.raises(TooLarge):
        decompress(codec, compress(data), max_bytes=len(data) - 1)


@each_compressed
def test_truncated_data_is_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    data = b"org.apache.kafka.producer.produce.throttle.time.max" * 30
    whole = compress(data)
    half = data[: len(data) // 2]
    sound = {
        len(gzip.compress(half)),
        len(zstd_without_size(half)),
        len(XERIAL_HEADER),
    }  # a first frame alone; no block
    for cut in set(range(len(whole))) - sound:
        with pytest.raises(DecompressError):
            decompress(codec, whole[:cut], max_bytes=MIB)


@each_compressed
def test_trailing_data_is_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    for rubbish in (b"\0", b"rubbish behind it"):
        with pytest.raises(DecompressError):
            decompress(codec, compress(b"metrics" * 50) + rubbish, max_bytes=MIB)


def zstd_run_lengths(nbytes: int) -> bytes:
    """The densest bomb of zstd: 4 bytes a block of 128 KiB, size not stated."""
    blocks = nbytes // (128 * 1024)
    head = b"\x28\xb5\x2f\xfd\x00\x58"  # magic; no size, no checksum; window of 2 MiB
    return head + b"".join(
        ((128 * 1024) << 3 | 1 << 1 | (n == blocks - 1)).to_bytes(3, "little") + b"\0" for n in range(blocks)
    )


def snappy_liar(nbytes: int) -> bytes:
    """States a size and contains nothing."""
    return bytes(cramjam.snappy.compress_raw(bytes(nbytes)))[:6]


def zeros(compress: Callable[[bytes], bytes]) -> Callable[[int], bytes]:
    def bomb(nbytes: int) -> bytes:
        return compress(bytes(nbytes))

    bomb.__name__ = compress.__name__
    return bomb


BOMBS: list[tuple[int, Callable[[int], bytes]]] = [
    *[(codec, zeros(compress)) for codec, compress in COMPRESSED if compress is not gzip_stored],
    (ZSTD, zstd_run_lengths),
    (SNAPPY, snappy_liar),
]


@pytest.mark.parametrize(("codec", "make"), BOMBS, ids=lambda v: getattr(v, "__name__", ""))
def test_bomb_is_refused_within_memory_bounds(codec: int, make: Callable[[int], bytes]) -> None:
    bomb = make(200 * MIB)
    tracemalloc.start()
    with pytest.raises(TooLarge):
        decompress(codec, bomb, max_bytes=MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb) + 4 * MIB


def test_excessive_frame_count_is_refused() -> None:
    for codec, empty in ((GZIP, gzip.compress(b"")), (LZ4, lz4.frame.compress(b"")), (ZSTD, zstd_with_size(b""))):
        with pytest.raises(DecompressError, match="frames"):
            decompress(codec, empty * 20_000, max_bytes=MIB)


def test_corrupt_data_and_unknown_codecs_are_refused() -> None:
    for codec in range(1, 5):
        for junk in (b"", b"\xff" * 40, b"{json}"):
            with pytest.raises(DecompressError):
                decompress(codec, junk, max_bytes=MIB)
    for codec in (-1, 5, 127):
        with pytest.raises(DecompressError, match="no codec"):
            decompress(codec, b"", max_bytes=MIB)
    with pytest.raises(DecompressError):  # zlib, not gzip
        decompress(GZIP, zlib.compress(b"metrics"), max_bytes=MIB)
    with pytest.raises(DecompressError):
        decompress(SNAPPY, XERIAL_HEADER + struct.pack(">i", -1) + b"x", max_bytes=MIB)
