"""What brokers answer: fewer versions and APIs than Apache's newest, odd answers, and very many topics."""

import contextlib
import dataclasses
import itertools
import random
import statistics
import struct
import time
from collections.abc import Mapping
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.cluster.reading import METADATA_VERSIONS, partition_counts, read_callback_classes, read_facts
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.connection import Rests
from quota_metrics.kafka.errors import ClusterError, UnsupportedError
from quota_metrics.kafka.frames import interrupted
from quota_metrics.kafka.primitives import ProtocolError, Reader
from quota_metrics.windows import QuotaWindow
from telemetry.wire.apis import API_VERSIONS, DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES, METADATA
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type, random_entity
from tests.quota_metrics.kafka.fake_broker import GOOD, Answer, FakeBroker, asking, in_any_version, nodes, spans

DESCRIBE_ACLS, DESCRIBE_LOG_DIRS, DESCRIBE_TOKENS, LIST_REASSIGNMENTS = 29, 35, 41, 46
DESCRIBE_QUOTAS, DESCRIBE_USERS = 48, 50
ALL = {key: (0, max(schema_name_map[name])) for key, name in api_key_map.items()}
TOPICS = [{"name": "orders", "partitions": [{"partition_index": index, "leader_id": 1} for index in range(3)]}]
WINDOW = [{"name": "quota.window.num", "value": "5"}, {"name": "quota.window.size.seconds", "value": "2"}]
RATE = {"name": "replica.alter.log.dirs.io.max.bytes.per.second", "value": "1000"}


def described(configs: list[dict[str, str]]) -> Answer:
    """DescribeConfigs of what is asked for: the broker has these."""

    def answer(frame: bytes) -> bytes | None:
        key, version = struct.unpack_from(">hh", frame)
        client_id_end = 10 + struct.unpack_from(">h", frame, 8)[0]
        request = decode(load_request_schema(key, version), frame[client_id_end + (version >= 4) :])
        results = [
            {"resource_name": asked.resource_name, "configs": configs if asked.resource_type == 4 else []}
            for asked in request.resources
        ]
        return in_any_version({"results": results})(frame)

    return answer


ANSWERS: dict[int, Answer] = {
    METADATA: nodes((1, 9092), topics=TOPICS),
    DESCRIBE_CONFIGS: described([*WINDOW, RATE]),
    DESCRIBE_ACLS: in_any_version({"resources": [{"resource_name": "t", "acls": [{"host": "192.0.2.1"}]}]}),
    DESCRIBE_LOG_DIRS: in_any_version({"results": []}),
    DESCRIBE_TOKENS: in_any_version({"tokens": [{"token_id": "id", "principal_name": "alice"}]}),
    LIST_REASSIGNMENTS: in_any_version({"topics": []}),
    DESCRIBE_QUOTAS: in_any_version(
        {
            "entries": [
                {
                    "entity": [{"entity_type": "ip", "entity_name": "192.0.2.1"}],
                    "values": [{"key": "connection_creation_rate", "value": 5.0}],
                }
            ]
        }
    ),
    LIST_CONFIG_RESOURCES: in_any_version({"config_resources": []}),
}


def asked(ask: Any, apis: Mapping[int, tuple[int, int]] = ALL, answers: Mapping[int, Answer] = {}) -> Any:
    """What `ask` returns of a broker that has these versions and answers so."""

    async def at_broker(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        fake.answers[METADATA] = answers.get(METADATA) or nodes((1, fake.port), topics=TOPICS)
        return await ask(admin)

    return asking({**ANSWERS, API_VERSIONS: spans(apis), **answers}, at_broker)


def unread(facts: ClusterFacts) -> set[str]:
    return {fact.what for fact in facts.unread}


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (key, version)
        for key in (METADATA, *ANSWERS.keys() - {METADATA, LIST_CONFIG_RESOURCES, DESCRIBE_TOKENS})
        for version in schema_name_map[api_key_map[key]]
    ],
)
def test_facts_are_the_same_in_each_version_of_each_api(key: int, version: int) -> None:
    facts = asked(read_facts, ALL | {key: (version, version)})
    assert unread(facts) == set()
    assert facts.partitions == {"orders": 3}
    assert {broker.quota_window for broker in facts.brokers} == {QuotaWindow(5, 2000)}
    assert (facts.has_authorizer, len(facts.host_acls), facts.reassigning) == (True, 1, 0)
    assert [(quota.ip, quota.rate) for quota in facts.address_quotas] == [("192.0.2.1", 5.0)]


@pytest.mark.parametrize("version", range(14))
def test_cluster_is_read_from_each_version_of_metadata(version: int) -> None:
    cluster = asked(lambda admin: admin.describe_cluster(), ALL | {METADATA: (version, version)})
    (node,) = cluster.nodes
    assert (node.id, node.host, node.rack) == (1, "127.0.0.1", "r" if version else None)
    assert (cluster.cluster_id, cluster.controller_id) == ("c" if version >= 2 else "", 1 if version else -1)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_token_owners_are_read_from_each_version(version: int) -> None:
    apis = ALL | {DESCRIBE_TOKENS: (version, version)}
    assert asked(lambda admin: admin.describe_token_owners(), apis) == {"id": "alice"}


def test_broker_that_has_little_leaves_facts_unread() -> None:
    facts = asked(read_facts, {METADATA: (0, 5), API_VERSIONS: (0, 3)})
    assert unread(facts) == {
        "configuration of broker 1",
        "connection_creation_rate of addresses",
        "ACLs with hosts",
        "throttled replicas of topics",
        "reassignments of partitions",
    }
    assert facts.partitions == {"orders": 3}
    assert facts.has_client_metrics is False


@pytest.mark.parametrize(
    "answer",
    [
        in_any_version({"results": []}),
        in_any_version({"results": [{"resource_name": "2", "configs": WINDOW}]}),
        in_any_version({"results": [{"resource_name": "1", "configs": []}]}),
    ],
)
def test_broker_that_does_not_describe_itself_is_not_known(answer: Answer) -> None:
    facts = asked(read_facts, answers={DESCRIBE_CONFIGS: answer})
    assert unread(facts) == {"configuration of broker 1"}
    assert {(broker.quota_window, broker.lacks_window) for broker in facts.brokers} == {(None, False)}
    assert asked(read_callback_classes, answers={DESCRIBE_CONFIGS: answer}) == ()


@pytest.mark.parametrize(
    "configs", [WINDOW[:1], [{"name": "other", "value": "1"}], [WINDOW[0], WINDOW[1] | {"value": "x"}]]
)
def test_window_that_a_broker_does_not_tell_is_said_to_be_a_default(configs: list[dict[str, str]]) -> None:
    facts = asked(read_facts, answers={DESCRIBE_CONFIGS: described(configs)})
    assert unread(facts) == {"quota window of broker 1"}
    assert facts.broker(1).lacks_window


@pytest.mark.parametrize("is_future", [False, True])
def test_log_directories_tell_whether_a_replica_moves(is_future: bool) -> None:
    partitions = [{"is_future_key": future} for future in (False, is_future)]
    results = [{"log_dir": "/a", "topics": [{"name": "orders", "partitions": partitions}]}]
    facts = asked(read_facts, answers={DESCRIBE_LOG_DIRS: in_any_version({"results": results})})
    assert facts.broker(1).moves_log_dirs is is_future


def test_nodes_without_an_address_are_left_out() -> None:
    good = {"node_id": 1, "host": "127.0.0.1", "port": 9092}
    odd = [good | {"port": port} for port in (-1, 0, 65_536, 2**31 - 1)] + [good | {"host": ""}, good | {"node_id": -1}]
    answers = {METADATA: in_any_version({"brokers": [*odd, good]})}
    assert [node.port for node in asked(lambda admin: admin.describe_cluster(), answers=answers).nodes] == [9092]
    with pytest.raises(ClusterError, match="without any broker"):
        asked(lambda admin: admin.describe_cluster(), answers={METADATA: in_any_version({"brokers": odd})})


def test_host_name_that_no_socket_takes_leaves_its_facts_unread() -> None:
    answers = {METADATA: in_any_version({"brokers": [{"node_id": 1, "host": "a\0b", "port": 9092}]})}
    assert "configuration of broker 1" in unread(asked(read_facts, answers=answers))


def test_cluster_without_the_api_is_told_by_its_own_error() -> None:
    for ask in (lambda admin: admin.describe_client_quotas(), read_subscriptions):
        with pytest.raises(UnsupportedError):
            asked(ask, {METADATA: (0, 5)})


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
