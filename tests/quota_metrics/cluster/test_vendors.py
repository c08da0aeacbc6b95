"""What brokers other than Apache's newest answer: fewer versions, fewer APIs, empty and odd answers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.cluster.reading import read_callback_classes, read_facts
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.errors import ClusterError, UnsupportedError
from quota_metrics.windows import QuotaWindow
from telemetry.wire.apis import API_VERSIONS, DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES, METADATA
from tests.kit.kio_entities import decode
from tests.quota_metrics.kafka.fake_broker import Answer, FakeBroker, asking, in_any_version, nodes, spans

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
    assert {broker.quota_window for broker in facts.brokers} == {None}
    assert asked(read_callback_classes, answers={DESCRIBE_CONFIGS: answer}) == ()


@pytest.mark.parametrize(
    "configs", [WINDOW[:1], [{"name": "other", "value": "1"}], [WINDOW[0], WINDOW[1] | {"value": "x"}]]
)
def test_window_that_a_broker_does_not_tell_is_said_to_be_a_default(configs: list[dict[str, str]]) -> None:
    facts = asked(read_facts, answers={DESCRIBE_CONFIGS: described(configs)})
    assert unread(facts) == {"quota window of broker 1"}


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
