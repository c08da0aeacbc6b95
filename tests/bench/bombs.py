"""Time to refuse a decompression bomb of each codec, and to close the connection of an invalid frame.

A bomb is a quarter of a GiB of zeros; the bound is that of `headroom serve`. The baseline is the codec's own time for
the same bytes without a bound. python -m tests.bench.bombs
"""

from __future__ import annotations

import gzip
import io
import statistics
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard

from headroom.config.settings import TelemetryConfig
from telemetry.decode.bounds import TooLarge, decompress
from tests.bench.figure import tell
from tests.bench.kit.serve import Serve
from tests.kit import wire

BOMB_BYTES = 256 << 20
BLOCK_BYTES = 1 << 20  # of xerial snappy
RUNS = 5
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LENGTHS = {"2GiB": 2**31 - 1, "negative": -1}


class Bomb(NamedTuple):
    """`unbounded` decompresses as the codec's library does."""

    compression_type: int
    data: bytes
    unbounded: Callable[[bytes], object]


def bombs() -> dict[str, Bomb]:
    zeros = bytes(BOMB_BYTES)
    raw = bytes(cramjam.snappy.compress_raw(zeros))
    block = bytes(cramjam.snappy.compress_raw(zeros[:BLOCK_BYTES]))
    blocks = (struct.pack(">i", len(block)) + block) * (BOMB_BYTES // BLOCK_BYTES)
    stream = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as writer:  # does not declare its size
        writer.write(zeros)
    return {
        "gzip": Bomb(GZIP, gzip.compress(zeros, 9), gzip.decompress),
        "snappy": Bomb(SNAPPY, raw, cramjam.snappy.decompress_raw),
        "snappy_xerial": Bomb(SNAPPY, XERIAL_HEADER + blocks, lambda _: cramjam.snappy.decompress_raw(raw)),
        "lz4": Bomb(LZ4, lz4.frame.compress(zeros), lz4.frame.decompress),
        "zstd": Bomb(ZSTD, zstandard.compress(zeros), zstandard.decompress),
        "zstd_stream": Bomb(
            ZSTD, stream.getvalue(), lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)
        ),
    }


def refused(bomb: Bomb) -> None:
    try:
        decompress(bomb.compression_type, bomb.data, max_bytes=TelemetryConfig().max_decompressed_bytes)
    except TooLarge:
        return
    raise AssertionError("a bomb was taken")


def took_ms(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return (time.perf_counter() - begun) * 1000


def closed_ms(port: int, length: int) -> float:
    """From the length of a frame to the end of the connection."""
    client = wire.connect(port)

    def ended() -> None:
        client.sendall(length.to_bytes(4, "big", signed=True))
        try:
            assert not client.recv(1)
        except ConnectionResetError:
            return

    try:
        return took_ms(ended)
    finally:
        client.close()


def main() -> None:
    for codec, bomb in bombs().items():
        ms = statistics.median(took_ms(partial(refused, bomb)) for _ in range(RUNS))
        tell(f"bomb_{codec}", ms, "ms", ms / took_ms(partial(bomb.unbounded, bomb.data)), "unbounded", digits=2)
    with Serve(1000) as serve:
        push_ms = statistics.median(_answered_ms(serve.port) for _ in range(RUNS))
        for name, length in LENGTHS.items():
            ms = statistics.median(closed_ms(serve.port, length) for _ in range(RUNS))
            tell(f"frame_length_{name}_closed", ms, "ms", ms / push_ms, "get_subscriptions_answered", digits=2)


def _answered_ms(port: int) -> float:
    client = wire.connect(port)

    def ask() -> None:
        client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0"))
        wire.subscribed(wire.read_frame(client))

    try:
        return took_ms(ask)
    finally:
        client.close()


if __name__ == "__main__":
    main()
