"""Seeds for fuzzing: frames and payloads of real clients and brokers, similar administration requests; mutations."""

import base64
import functools
import json
import random
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import zstandard
from kio.schema.describe_client_quotas.v1 import request as quotas_request

from telemetry.wire.apis import APIS
from tests.kit import wire
from tests.kit.kio_entities import encode, entity_of_fields, message_type
from tests.oracle.administration_oracle import describe, incremental, legacy, listing

VECTORS = Path(__file__).parents[1] / "vectors"
CLIENT_METRICS, SET, APPEND = 16, 0, 2
DESCRIBE_QUOTAS = quotas_request.DescribeClientQuotasRequest(components=(), strict=False)

_KEYS = [("metrics", SET, "org.apache.kafka.producer.,*"), ("interval.ms", SET, "1000")]
_KEYS += [("match", APPEND, r"client_id=(?i)app-\d+.*,client_software_name=[a-z&&[^b]]")]


@functools.cache
def seeds() -> dict[str, list[bytes]]:
    """By what they are. Requests and responses are whole frames; answers on quotas have no length."""
    frames = {name: base64.b64decode(text) for name, text in json.loads((VECTORS / "frames.json").read_text()).items()}
    payloads = [path.read_bytes() for path in sorted(VECTORS.glob("*.zst"))]
    entities: list[dict[str, str | None]] = [{"user": "alice", "client-id": None}, {"user": None}, {"ip": "10.0.0.1"}]
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "values": [{"key": "producer_byte_rate", "value": 1024.0}],
        }
        for entity in entities
    ]
    quotas = entity_of_fields(message_type("describe_client_quotas", 1, "response"), {"entries": entries})
    return {
        "request": [frame for name, frame in frames.items() if name.startswith("request")],
        "administration": list(_administration()),
        "compressed": payloads,
        "payload": [zstandard.ZstdDecompressor().decompressobj().decompress(data) for data in payloads],
        "quotas": [struct.pack(">i", 1) + b"\0" + encode(quotas)],
    }


@functools.cache
def exchanges() -> dict[str, tuple[bytes, bytes]]:
    """By API key and version: a request and its response, as frames of one connection."""
    frames = {name: base64.b64decode(text) for name, text in json.loads((VECTORS / "frames.json").read_text()).items()}
    pairs = {}
    for name, response in frames.items():
        kind, _, api = name.partition(" ")
        if kind == "response":
            pairs[api] = (frames[f"request {api}"], response)
    return pairs


def _administration() -> Iterable[bytes]:
    """32, 33, 44 and 74 in all their versions."""
    plain = [(CLIENT_METRICS, "a", [(key, value) for key, _, value in _KEYS])]
    for version in range(1, 5):
        yield request_frame(
            32, version, describe(version, [(CLIENT_METRICS, "a", None), (2, "t", ["match"])], synonyms=True)
        )
    for version in range(3):
        yield request_frame(33, version, legacy(version, plain))
    for version in range(2):
        yield request_frame(
            44, version, incremental(version, [(CLIENT_METRICS, "a", _KEYS), (CLIENT_METRICS, "b", _KEYS)])
        )
        yield request_frame(74, version, listing(version, [CLIENT_METRICS, 2]))


def request_frame(api_key: int, version: int, body: bytes) -> bytes:
    """With its length, from the client `fuzz`."""
    return wire.request(api_key, body, b"fuzz", version)


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
