"""Messages that are rewritten or read, version by version, with kio's generated schema as a second implementation."""

import dataclasses
import random
import struct
from collections import Counter
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from headroom.demo.jvm import Jvm
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, FETCH, PRODUCE
from telemetry.wire.errors import ErrorCode as AnsweredCode
from telemetry.wire.fetch_endpoints import FetchEndpoints
from telemetry.wire.mutations import UNREADABLE, accepted_changes, requested_changes
from telemetry.wire.topic_bytes import ID_MARK, TopicBytes
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type, random_entity

OF_CONTROLLERS = {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}  # test_releases.py asks Kafka's classes


def test_api_table_covers_every_api_of_the_schema_that_a_broker_offers() -> None:
    assert set(api_key_map) == set(APIS) | OF_CONTROLLERS


@pytest.mark.java
def test_error_codes_match_kafka(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in AnsweredCode} == {
        code.name: errors.valueOf(code.name).code() for code in AnsweredCode
    }


def produce(body: bytes, version: int, address_of: addresses.AddressOf) -> bytes:
    return addresses.produce(b"head" + body, 4, version, address_of)[0] or body


REWRITTEN: dict[str, tuple[addresses.Rewrite, range]] = {
    "metadata": (addresses.metadata, range(14)),
    "find_coordinator": (addresses.find_coordinator, range(7)),
    "describe_cluster": (addresses.describe_cluster, range(3)),
    "produce": (produce, range(3, 14)),
    "share_fetch": (addresses.share_fetch, range(1, 3)),
    "share_acknowledge": (addresses.share_acknowledge, range(1, 3)),
}
REWRITE_CASES = [(name, version) for name, (_, versions) in REWRITTEN.items() for version in versions]


def receiver(node_id: int, host: str, port: int) -> tuple[str, int]:
    return f"gateway-of-{host[:20]}", node_id % 60_000


def moved(value: Any) -> Any:
    """The expected result: the same response with each address replaced."""
    if isinstance(value, tuple):
        return tuple(moved(item) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {f.name: moved(getattr(value, f.name)) for f in dataclasses.fields(value)}
    node_id = changed.get("node_id", changed.get("broker_id", -1))
    if {"host", "port"} <= changed.keys() and node_id >= 0:
        before: Any = value
        host, port = receiver(node_id, before.host, before.port)
        changed |= {"host": host, "port": type(before.port)(port)}
    return type(value)(**changed)


@pytest.mark.parametrize(("api", "version"), REWRITE_CASES)
def test_only_addresses_are_rewritten(api: str, version: int) -> None:
    entity_type = message_type(api, version, "response")
    rng = random.Random(version)
    for _ in range(20):
        entity = random_entity(rng, entity_type)
        if api == "describe_cluster" and version >= 1:
            entity = dataclasses.replace(entity, endpoint_type=type(entity.endpoint_type)(1))
        body = encode(entity)
        assert decode(entity_type, REWRITTEN[api][0](body, version, receiver)) == moved(entity)


def test_controller_endpoints_are_not_rewritten() -> None:
    rng = random.Random(2)
    for _ in range(20):
        entity = random_entity(rng, message_type("describe_cluster", 2, "response"))
        body = encode(dataclasses.replace(entity, endpoint_type=type(entity.endpoint_type)(2)))
        assert addresses.describe_cluster(body, 2, receiver) == body


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_rewrite_returns_throttle_time(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        entity = random_entity(rng, message_type("produce", version, "response"))
        expected = round(entity.throttle_time.total_seconds() * 1000)
        assert addresses.produce(encode(entity), 0, version, receiver)[1] == expected


def offered(body: bytes, version: int) -> dict[int, tuple[int, int]]:
    entity = decode(message_type("api_versions", version, "response"), body)
    return {int(k.api_key): (int(k.min_version), int(k.max_version)) for k in entity.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_adds_telemetry_and_caps_versions(version: int) -> None:
    of_broker = {0: (0, 99), 1: (4, 19), 3: (0, 12), 17: (0, 1), 18: (0, 5), 4711: (0, 3)}
    rows = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in of_broker.items()]
    body = encode(entity_of_fields(message_type("api_versions", version, "response"), {"api_keys": rows}))
    assert offered(addresses.api_versions(body, version), version) == {
        0: (0, APIS[0].max_version),
        1: (4, 18),
        3: (0, 12),
        17: (0, 1),
        18: (0, 4),
        71: (0, 0),
        72: (0, 0),
    }
    for error in (34, 35, 42):  # the client reads nothing behind it
        refused = error.to_bytes(2) + body[2:]
        assert addresses.api_versions(refused, version) == refused


KEYS = {"create_topics": CREATE_TOPICS, "create_partitions": CREATE_PARTITIONS, "delete_topics": DELETE_TOPICS}
MUTATION_CASES = [
    *(("create_topics", version) for version in range(2, 8)),
    *(("create_partitions", version) for version in range(4)),
    *(("delete_topics", version) for version in range(1, 7)),
]


def topics_of(api: str, version: int, request: Any) -> tuple[tuple[str, int, int], ...]:
    if api == "delete_topics":
        if version < 6:
            return tuple((name, 0, -1) for name in request.topic_names)
        ids = (topic.topic_id.hex if topic.topic_id else "0" * 32 for topic in request.topics)
        return tuple((topic.name or f"id:{of_id}", 0, -1) for topic, of_id in zip(request.topics, ids, strict=True))
    if api == "create_topics":
        sizes = ((topic.name, len(topic.assignments) or max(topic.num_partitions, -1)) for topic in request.topics)
        return tuple((name, size, size) for name, size in sizes)
    return tuple((topic.name, max(topic.count, -1), len(topic.assignments or ()) or -1) for topic in request.topics)


@pytest.mark.parametrize(("api", "version"), MUTATION_CASES)
def test_request_is_read_in_each_version(api: str, version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        request = random_entity(rng, message_type(api, version, "request"))
        tried = getattr(request, "validate_only", False)
        expected = tuple((*topic, tried) for topic in topics_of(api, version, request))
        assert requested_changes(APIS[KEYS[api]], version, encode(request)) == expected


@pytest.mark.parametrize(("api", "version"), MUTATION_CASES)
def test_topics_that_the_controller_refused_do_not_count(api: str, version: int) -> None:
    rng = random.Random(version)
    of_api, entity_type = APIS[KEYS[api]], message_type(api, version, "response")
    field = {"create_topics": "topics", "create_partitions": "results", "delete_topics": "responses"}[api]
    for _ in range(50):
        response = random_entity(rng, entity_type)
        codes = (ErrorCode.none, ErrorCode.throttling_quota_exceeded)
        results = tuple(
            dataclasses.replace(result, name=f"t{n}", error_code=rng.choice(codes))
            for n, result in enumerate(getattr(response, field))
        )
        body = encode(dataclasses.replace(response, **{field: results}))
        asked = tuple((f"t{n}", 4, 4, False) for n in range(len(results) + 1))  # of one nothing is said
        accepted = accepted_changes(of_api, version, body, asked)
        assert [topic for topic, *_ in accepted] == [
            result.name for result in results if result.error_code == ErrorCode.none
        ]


def test_created_topic_has_the_number_of_partitions_that_the_response_tells() -> None:
    entity_type = message_type("create_topics", 7, "response")
    response = random_entity(random.Random(1), entity_type)
    (result, *_) = response.topics
    with_six = dataclasses.replace(
        result, name="t", error_code=ErrorCode.none, num_partitions=type(result.num_partitions)(6)
    )
    body = encode(dataclasses.replace(response, topics=(with_six,)))
    assert accepted_changes(APIS[CREATE_TOPICS], 7, body, (("t", -1, -1, True),)) == (("t", 6, 6, True),)


@pytest.mark.parametrize(("api", "version"), MUTATION_CASES)
def test_bytes_that_cannot_be_read_are_unknown(api: str, version: int) -> None:
    of_api = APIS[KEYS[api]]

    @settings(max_examples=30, deadline=None)
    @given(st.binary(max_size=80))
    def check(body: bytes) -> None:
        requested_changes(of_api, version, body)
        accepted_changes(of_api, version, body, UNREADABLE)

    check()
    assert requested_changes(of_api, version, b"\x7f") == UNREADABLE
    assert accepted_changes(of_api, version, b"\x7f", (("t", 1, 1, False),)) == (("t", 1, 1, False),)


def test_message_with_very_many_elements_is_not_read() -> None:
    body = (200_000).to_bytes(4, "big") + bytes(2 * 200_000)
    assert requested_changes(APIS[DELETE_TOPICS], 3, body) == UNREADABLE


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
