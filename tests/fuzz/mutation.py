"""Mutates valid bytes: one to eight changes, and headers of another API."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial

from telemetry.wire.apis import APIS

MAX_BYTES = 1 << 17

Change = Callable[[random.Random, bytearray, int, list[bytes]], None]


def mutated(source: random.Random, seed: bytes, others: list[bytes]) -> bytes:
    """One to eight changes: bits, bytes, lengths, cuts, repeats, splices."""
    data = bytearray(seed)
    for _ in range(source.randint(1, 8)):
        at = source.randrange(len(data) + 1)
        source.choice(_CHANGES)(source, data, at, others)
    return bytes(data[:MAX_BYTES])


def redirected(source: random.Random, frame: bytes) -> bytes:
    """The same request as one of any API and version, often of one that is not known."""
    key = source.choice([*APIS, -1, 200])
    version = source.randrange(-1, APIS[key].max_version + 2 if key in APIS else 3)
    return frame[:4] + struct.pack(">hh", key, version) + frame[8:]


def _flip(source: random.Random, data: bytearray, at: int, others: list[bytes]) -> None:
    if at < len(data):
        data[at] ^= 1 << source.randrange(8)


def _extreme(source: random.Random, data: bytearray, at: int, others: list[bytes], *, size: int) -> None:
    data[at : at + size] = source.choice(
        [b"\x00" * size, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), b"\x80" + b"\x00" * (size - 1)]
    )


def _cut(source: random.Random, data: bytearray, at: int, others: list[bytes]) -> None:
    del data[at : at + source.randint(1, 64)]


def _junk(source: random.Random, data: bytearray, at: int, others: list[bytes]) -> None:
    data[at:at] = source.randbytes(source.randint(1, 64))


def _repeat(source: random.Random, data: bytearray, at: int, others: list[bytes]) -> None:
    data[at:at] = data[at : at + 64] * source.randint(1, 16)


def _splice(source: random.Random, data: bytearray, at: int, others: list[bytes]) -> None:
    other = source.choice(others)
    data[at:] = other[source.randrange(len(other) + 1) :]


_CHANGES: list[Change] = [_flip, partial(_extreme, size=2), partial(_extreme, size=4), partial(_extreme, size=5)]
_CHANGES += [_cut, _junk, _repeat, _splice]
