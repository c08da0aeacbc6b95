"""telemetry/verification/one_topic.py: what producers are answered, by kio's schema of each offered version."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.verification.one_topic import VERSIONS, answer_producer
from telemetry.wire.apis import INIT_PRODUCER_ID, PRODUCE
from tests.kit.kio_entities import decode, encode, message_type, random_entity

OFFERED = [(key, version) for key, (least, newest) in VERSIONS.items() for version in range(least, newest + 1)]
NAMES = {PRODUCE: "produce", INIT_PRODUCER_ID: "init_producer_id"}


def request_of(key: int, version: int, seed: int) -> Any:
    return random_entity(random.Random(seed), message_type(NAMES[key], version, "request"))


@pytest.mark.parametrize("version", range(3, 13))
@given(seed=st.integers(0, 2**32))
def test_each_partition_is_acknowledged_unless_nobody_waits(version: int, seed: int) -> None:
    request = request_of(PRODUCE, version, seed)
    body = answer_producer(PRODUCE, version, encode(request))
    if not request.acks:
        assert body == b""
        return
    reported = decode(message_type("produce", version, "response"), body)
    assert [
        (topic.name, partition.index, partition.error_code.value)
        for topic in reported.responses
        for partition in topic.partition_responses
    ] == [(topic.name, partition.index, 0) for topic in request.topic_data for partition in topic.partition_data]


@pytest.mark.parametrize("version", range(5))
def test_a_producer_gets_an_id(version: int) -> None:
    body = answer_producer(INIT_PRODUCER_ID, version, encode(request_of(INIT_PRODUCER_ID, version, version)))
    reported = decode(message_type("init_producer_id", version, "response"), body)
    assert (reported.error_code.value, reported.producer_id, reported.producer_epoch) == (0, 1, 0)


@given(st.sampled_from(OFFERED), st.binary(max_size=80))
def test_random_bytes_raise_only_protocol_error(offered: tuple[int, int], body: bytes) -> None:
    try:
        answer_producer(*offered, body)
    except ProtocolError:
        return
