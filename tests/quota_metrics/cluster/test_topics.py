"""What is read of Metadata, beside kio's entities of the same bytes, in each version."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import statistics
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quota_metrics.cluster.reading import METADATA_VERSIONS, partition_counts, read_facts
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.connection import Rests
from quota_metrics.kafka.frames import interrupted
from quota_metrics.kafka.primitives import ProtocolError, Reader
from tests.kit.kio_entities import encode, entity_of_fields, message_type, random_entity
from tests.quota_metrics.kafka.fake_broker import GOOD, METADATA, FakeBroker, asking, nodes


def drawn(rng: random.Random, version: int) -> tuple[Any, bytes]:
    entity = random_entity(rng, message_type("metadata", version, "response"))
    codes = (ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition)
    topics = tuple(dataclasses.replace(topic, error_code=rng.choice(codes)) for topic in entity.topics)
    entity = dataclasses.replace(entity, topics=topics)
    return entity, encode(entity)


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_topics_are_those_of_the_entities(version: int) -> None:
    rng = random.Random(version)
    topics = 0
    for _ in range(60):
        entity, body = drawn(rng, version)
        described = [topic for topic in entity.topics if not topic.error_code]
        topics += len(described)
        assert partition_counts(version, Reader(body)) == {
            topic.name or "": len(topic.partitions) for topic in described
        }
    assert topics


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_damaged_metadata_raises_only_protocol_error(version: int) -> None:
    rng = random.Random(version)
    for _ in range(150):
        body = bytearray(drawn(rng, version)[1])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        with contextlib.suppress(ProtocolError):
            partition_counts(version, Reader(bytes(body[: rng.randint(0, len(body))])))


def large(version: int, partitions: int) -> bytes:
    partition = {"leader_id": 1, "replica_nodes": [1, 2, 3], "isr_nodes": [1, 2]}
    topics = [{"name": f"t-{n}", "partitions": [partition] * partitions} for n in range(20_000 // partitions)]
    return encode(entity_of_fields(message_type("metadata", version, "response"), {"topics": topics}))


@pytest.mark.parametrize("partitions", [1, 10, 20_000])
@pytest.mark.parametrize("version", [8, 12])
def test_thread_that_rests_holds_the_interpreter_for_short_slices_only(
    version: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = large(version, partitions)
    rested: list[float] = []  # CPU time of this thread at each rest
    monkeypatch.setattr(time, "sleep", lambda _: rested.append(time.thread_time()))
    expected = partition_counts(version, Reader(body))
    assert rested == []
    began = time.thread_time()
    with interrupted(Rests()):
        assert partition_counts(version, Reader(body)) == expected
    slices = [after - before for before, after in itertools.pairwise([began, *rested])]
    assert len(slices) > 20
    assert statistics.median(slices) < 0.0005
    if version <= 8:  # entities are garbage, and collecting it takes long in a process as large as this one
        assert sum(slice_s for slice_s in slices if slice_s > 0.002) < 0.1 * sum(slices)
    before = len(rested)
    partition_counts(version, Reader(body))  # the thread is used for other things again
    assert len(rested) == before


def test_paced_client_reads_the_same() -> None:
    topics = [{"name": f"t-{n}", "partitions": [{"partition_index": n, "leader_id": 1}]} for n in range(2_000)]

    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> list[Any]:
        fake.answers[METADATA] = nodes((1, fake.port), topics=topics)
        answers = []
        for admin.is_paced in (False, True):
            answers.append((await read_facts(admin)).partitions)
        return answers

    counts, paced_counts = asking(GOOD, ask)
    assert counts == paced_counts
    assert len(counts) == 2_000
