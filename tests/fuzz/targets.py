"""What hostile bytes are thrown at. Each target takes bytes and ends quietly, or with an error that it documents.

Anything else (another exception, a crash, a hang, memory without bound) is a finding.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import zstandard

from exporters.model import ANONYMOUS, UNKNOWN, Connection, Push
from exporters.records import decode_instance, decode_limits, decode_push, decode_usage
from exporters.segments import scan
from telemetry.compression import DecompressError, TooLarge, decompress
from telemetry.connection import ProxiedConnection
from telemetry.errors import ProtocolError
from telemetry.exchanges import Limits
from telemetry.otlp import DecodeError, TooManyPoints, decode
from telemetry.otlp import Limits as PayloadLimits
from telemetry.push import TelemetryDoor
from telemetry.sink import SinkAnswers
from telemetry.subscription_file import SubscriptionFile
from telemetry.subscriptions import ClientMetrics

VECTORS = Path(__file__).parents[1] / "vectors"
FACTS = Connection("fuzz", "PLAINTEXT", ANONYMOUS, "127.0.0.1", 1, UNKNOWN, UNKNOWN, 1)
MAX_PAYLOAD_BYTES = 1 << 20
NOW_MS = 1_795_000_000_000

Target = Callable[[bytes], None]


def seeds() -> dict[str, list[bytes]]:
    """Captured bytes of real clients and brokers, by what they are."""
    frames = {name: base64.b64decode(text) for name, text in json.loads((VECTORS / "frames.json").read_text()).items()}
    payloads = [path.read_bytes() for path in sorted(VECTORS.glob("*.zst"))]
    return {
        "request": [frame for name, frame in frames.items() if name.startswith("request")],
        "response": [frame for name, frame in frames.items() if name.startswith("response")],
        "compressed": payloads,
        "payload": [zstandard.ZstdDecompressor().decompressobj().decompress(data) for data in payloads],
    }


class Targets:
    """The targets by name, and which seeds each begins with."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._seeds = seeds()
        self._rules = ClientMetrics(new_id=lambda: source.randbytes(16), max_instances=1000)
        self._rules.update("all", {"metrics": "*", "interval.ms": "100"}, NOW_MS)
        self._door = TelemetryDoor(self._rules, append=lambda *_: None, telemetry_max_bytes=MAX_PAYLOAD_BYTES)
        file = SubscriptionFile(Path(tempfile.mkdtemp()) / "subscriptions.yaml", self._rules, lambda: NOW_MS)
        self._sink = SinkAnswers("fuzz", file).found_at("127.0.0.1", 9092)
        self.by_name: dict[str, tuple[Target, list[bytes]]] = {
            "gateway request": (self._gateway, self._seeds["request"]),
            "sink request": (self._sink_request, self._seeds["request"]),
            "broker response": (self._response, self._seeds["response"]),
            "compressed payload": (self._compressed, self._seeds["compressed"]),
            "payload": (self._payload, self._seeds["payload"]),
            "spool": (self._spool, self._seeds["request"]),
        }

    def _connection(self, **extra: object) -> ProxiedConnection:
        return ProxiedConnection(
            facts=FACTS,
            connection_id=str(self._source.random()),
            door=self._door,
            address_of=lambda node_id, host, port: ("127.0.0.1", 1),
            observe=lambda **_: None,
            limits=Limits(max_request_bytes=1 << 24, max_held_request_bytes=1 << 16),
            **extra,  # type: ignore[arg-type] # `local`, or nothing
        )

    def _gateway(self, data: bytes) -> None:
        self._talk(self._connection(), data)

    def _sink_request(self, data: bytes) -> None:
        self._talk(self._connection(local=self._sink), data)

    def _talk(self, connection: ProxiedConnection, data: bytes) -> None:
        cut = self._source.randrange(len(data) + 1)
        try:
            for piece in (data[:cut], data[cut:]):
                connection.from_client(piece, NOW_MS)
                if connection.unflushed:
                    connection.unflushed = False
                    connection.flushed(True, NOW_MS)
        except ProtocolError:
            pass
        connection.closed()

    def _response(self, data: bytes) -> None:
        connection = self._connection()
        try:
            for request in self._source.choices(self._seeds["request"], k=3):
                connection.from_client(request, NOW_MS)
            connection.from_upstream(data, NOW_MS)
        except ProtocolError:
            pass
        connection.closed()

    def _compressed(self, data: bytes) -> None:
        for compression_type in range(5):
            try:
                decompressed = decompress(compression_type, data, max_bytes=MAX_PAYLOAD_BYTES)
            except (DecompressError, TooLarge):
                continue
            assert len(decompressed) <= MAX_PAYLOAD_BYTES

    def _payload(self, data: bytes) -> None:
        push = Push(FACTS, "fuzz", b"i" * 16, NOW_MS, 1, False, 0, b"")
        with contextlib.suppress(DecodeError, TooManyPoints):
            decode(data, push, PayloadLimits(), frozenset())

    def _spool(self, data: bytes) -> None:
        scan(data, 7, 100)
        for read in (decode_push, decode_instance, decode_usage, decode_limits):
            try:
                read(data)
            except (ValueError, TypeError):
                continue


def mutated(source: random.Random, seed: bytes, others: list[bytes]) -> bytes:
    """One to eight changes: bits, bytes, lengths, cuts, repeats, splices."""
    data = bytearray(seed)
    for _ in range(source.randint(1, 8)):
        at = source.randrange(len(data) + 1)
        source.choice(_CHANGES)(source, data, at, others)
    return bytes(data[: 1 << 17])


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


_CHANGES = [_flip, partial(_extreme, size=2), partial(_extreme, size=4), partial(_extreme, size=5)]
_CHANGES += [_cut, _junk, _repeat, _splice]
