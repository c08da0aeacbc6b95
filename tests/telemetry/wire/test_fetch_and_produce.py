"""Frames that are read while they are forwarded, however their bytes arrive; kio encodes them."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections import Counter
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire.apis import APIS, FETCH, PRODUCE
from telemetry.wire.fetch_endpoints import FetchEndpoints
from telemetry.wire.topic_bytes import ID_MARK, TopicBytes
from tests.kit.kio_entities import encode, message_type, random_entity

VERSIONS = [(PRODUCE, version) for version in range(3, 14)] + [(FETCH, version) for version in range(4, 19)]
NAMES = ("orders", "a", "payments.eu-1_x", "n" * 249)


def framed(key: int, version: int, body: bytes) -> bytes:
    tags = b"\x00" if APIS[key].flexible(version) else b""
    head = struct.pack(">hhih", PRODUCE, version, 7, 3) + b"app" if key == PRODUCE else struct.pack(">i", 7)
    return struct.pack(">i", len(head + tags + body)) + head + tags + body


def read(key: int, version: int, frame: bytes, cuts: list[int] | None = None) -> Counter[str]:
    topics = TopicBytes(key, version)
    places = sorted({0, len(frame), *(cut % len(frame) for cut in cuts or ())})
    for a, b in pairwise(places):
        topics.feed(frame[a:b])
    return Counter(topics.topics)


def drawn(rng: random.Random, key: int, version: int) -> tuple[bytes, Counter[str]]:
    """A random body, with the bytes by topic that it has."""
    api, topics, partitions = (
        ("produce", "topic_data", "partition_data") if key == PRODUCE else ("fetch", "responses", "partitions")
    )
    side = "request" if key == PRODUCE else "response"
    message = random_entity(rng, message_type(api, version, side))
    named = tuple(
        dataclasses.replace(
            topic, **({} if version >= 13 else {"name" if key == PRODUCE else "topic": rng.choice(NAMES)})
        )
        for topic in getattr(message, topics)
    )
    expected: Counter[str] = Counter()
    for topic in named:
        name = (
            ID_MARK + (topic.topic_id or UUID(int=0)).hex
            if version >= 13
            else getattr(topic, "name", None) or topic.topic
        )
        expected[name] += sum(len(partition.records or b"") for partition in getattr(topic, partitions))
    return encode(dataclasses.replace(message, **{topics: named})), +expected


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_record_bytes_are_read_by_topic(key: int, version: int, seed: int, cuts: list[int]) -> None:
    body, expected = drawn(random.Random(seed), key, version)
    frame = framed(key, version, body)
    assert read(key, version, frame, cuts) == read(key, version, frame, list(range(len(frame)))) == expected


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_frame_that_does_not_end_with_its_schema_yields_nothing(key: int, version: int) -> None:
    rng = random.Random(version)
    body, expected = next(frame for frame in iter(lambda: drawn(rng, key, version), None) if frame[1])
    assert expected
    assert not read(key, version, framed(key, version, body + b"\x00"))
    for end in range(len(body)):
        assert not read(key, version, framed(key, version, body[:end]))


def test_a_frame_of_too_many_partitions_is_not_read_to_its_end() -> None:
    partitions = struct.pack(">ii", 0, 1) + b"r"
    for count, expected in ((9_999, {"t": 9_999}), (10_001, {})):
        body = struct.pack(">hhiih", -1, 1, 1, 1, 1) + b"t" + struct.pack(">i", count) + partitions * count
        assert read(PRODUCE, 3, framed(PRODUCE, 3, body)) == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "(others)", "#", "é", "n" * 250])
def test_a_name_that_kafka_refuses_is_not_counted(name: str) -> None:
    encoded = name.encode()
    topic = struct.pack(">h", len(encoded)) + encoded + struct.pack(">iii", 1, 0, 1) + b"r"
    assert not read(PRODUCE, 3, framed(PRODUCE, 3, struct.pack(">hhii", -1, 1, 1, 1) + topic))


def without_endpoints(version: int, response: Any) -> bytes:
    """The frame with another tag in place of NodeEndpoints'."""
    body = encode(response)
    before = encode(dataclasses.replace(response, node_endpoints=()))[:-1]  # ends with no tagged fields
    assert body.startswith(before)
    if response.node_endpoints:
        assert body[len(before) : len(before) + 2] == b"\x01\x00"
        body = before + b"\x01\x7f" + body[len(before) + 2 :]
    return framed(FETCH, version, body)


def in_pieces(frame: bytes, cuts: list[int]) -> bytes:
    endpoints = FetchEndpoints()
    places = sorted({0, len(frame), *(cut % len(frame) for cut in cuts)})
    return b"".join(endpoints.hidden(frame[a:b]) for a, b in pairwise(places))


@pytest.mark.parametrize("version", (16, 17, 18))
@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_only_endpoints_disappear(version: int, seed: int, cuts: list[int]) -> None:
    response = random_entity(random.Random(seed), message_type("fetch", version, "response"))
    frame = framed(FETCH, version, encode(response))
    assert in_pieces(frame, cuts) == in_pieces(frame, list(range(len(frame)))) == without_endpoints(version, response)


def test_one_scanner_takes_frame_after_frame() -> None:
    entity_type = message_type("fetch", 16, "response")
    endpoints, rng = FetchEndpoints(), random.Random(1)
    for _ in range(50):
        response = random_entity(rng, entity_type)
        endpoints.begin()
        assert endpoints.hidden(framed(FETCH, 16, encode(response))) == without_endpoints(16, response)


@given(st.binary(max_size=300))
def test_any_bytes_keep_their_length(data: bytes) -> None:
    try:
        assert len(FetchEndpoints().hidden(data)) == len(data)
    except ProtocolError as exc:
        assert "more than 32 bits" in str(exc)
