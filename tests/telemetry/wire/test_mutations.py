"""Partitions that requests change, with messages of all versions written by kio's generated schema; `make oracle` has
those of Kafka's own classes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from exporters.model import Changes
from telemetry.wire.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from telemetry.wire.mutations import UNREADABLE, accepted_changes, requested_changes
from tests.kit.kio_entities import encode, message_type, random_entity

KEYS = {"create_topics": CREATE_TOPICS, "create_partitions": CREATE_PARTITIONS, "delete_topics": DELETE_TOPICS}
CASES = [
    *(("create_topics", version) for version in range(2, 8)),
    *(("create_partitions", version) for version in range(4)),
    *(("delete_topics", version) for version in range(1, 7)),
]


def topics_of(api: str, version: int, request: Any) -> Changes:
    if api == "delete_topics":
        if version < 6:
            return tuple((name, 0, -1) for name in request.topic_names)
        ids = (topic.topic_id.hex if topic.topic_id else "0" * 32 for topic in request.topics)
        return tuple((topic.name or f"id:{of_id}", 0, -1) for topic, of_id in zip(request.topics, ids, strict=True))
    if api == "create_topics":
        sizes = ((topic.name, len(topic.assignments) or max(topic.num_partitions, -1)) for topic in request.topics)
        return tuple((name, size, size) for name, size in sizes)
    return tuple((topic.name, max(topic.count, -1), len(topic.assignments or ()) or -1) for topic in request.topics)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_request_is_read_in_each_version(api: str, version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        request = random_entity(rng, message_type(api, version, "request"))
        body = encode(request)
        assert requested_changes(APIS[KEYS[api]], version, body) == topics_of(api, version, request)


@pytest.mark.parametrize(("api", "version"), CASES)
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
        asked = tuple((f"t{n}", 4, 4) for n in range(len(results) + 1))  # of one nothing is said
        accepted = accepted_changes(of_api, version, body, asked)
        assert [topic for topic, *_ in accepted] == [
            result.name for result in results if result.error_code == ErrorCode.none
        ]


def test_created_topic_has_the_number_of_partitions_that_the_response_tells() -> None:
    entity_type = message_type("create_topics", 7, "response")
    response = random_entity(random.Random(1), entity_type)
    (result, *_) = response.topics
    told = dataclasses.replace(
        result, name="t", error_code=ErrorCode.none, num_partitions=type(result.num_partitions)(6)
    )
    body = encode(dataclasses.replace(response, topics=(told,)))
    assert accepted_changes(APIS[CREATE_TOPICS], 7, body, (("t", -1, -1),)) == (("t", 6, 6),)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_bytes_that_cannot_be_read_are_unknown(api: str, version: int) -> None:
    of_api = APIS[KEYS[api]]

    @settings(max_examples=30, deadline=None)
    @given(st.binary(max_size=80))
    def check(body: bytes) -> None:
        requested_changes(of_api, version, body)
        accepted_changes(of_api, version, body, UNREADABLE)

    check()
    assert requested_changes(of_api, version, b"\x7f") == UNREADABLE
    assert accepted_changes(of_api, version, b"\x7f", (("t", 1, 1),)) == (("t", 1, 1),)


def test_message_with_very_many_elements_is_not_read() -> None:
    body = (200_000).to_bytes(4, "big") + bytes(2 * 200_000)
    assert requested_changes(APIS[DELETE_TOPICS], 3, body) == UNREADABLE
