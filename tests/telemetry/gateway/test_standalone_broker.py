"""Responses of the stand-alone sink, version by version, decoded by kio's generated schema as a second opinion."""

import fcntl
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from exporters.model import Connection
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway import standalone_broker as sink
from telemetry.gateway.networks import LOOPBACK, Administrators, networks_of
from telemetry.gateway.responses import LocalAnswer
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type, random_entity
from tests.oracle import administration_oracle as requests

Resource = tuple[int, str, list[tuple[str, int, str | None]]]


def response(api: str, version: int, body: bytes) -> Any:
    return decode(message_type(api, version, "response"), body)


class Listener:
    """The answers at one address, over a file."""

    def __init__(self, path: Path) -> None:
        self.rules = ClientMetrics(new_id=lambda: bytes(16))
        self.file = SubscriptionFile(path, self.rules, lambda: 5)
        self.sink = sink.SinkAnswers("the-cluster", self.file, Administrators(networks_of(LOOPBACK), ["User:alice"]))
        self.answers = self.answers_to("127.0.0.1")

    def answers_to(self, address: str, principal: str = "ANONYMOUS") -> Mapping[int, LocalAnswer]:
        client = Connection("the-cluster", "PLAINTEXT", principal, address, 5, "java", "1", -1)
        return self.sink.found_at("found.at", 1234, client)

    def alter(self, *resources: Resource) -> list[tuple[int, str | None]]:
        reported = requests.decoded(44, 1, self.answers[44](1, requests.incremental(1, resources)))
        return [(int(result.error_code), result.error_message) for result in reported.responses]

    def names(self) -> list[str]:
        reported = requests.decoded(74, 0, self.answers[74](0, requests.listing(0)))
        return [resource.resource_name for resource in reported.config_resources]


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path / "subscriptions.yaml")


@pytest.mark.parametrize(
    ("address", "principal", "altered"),
    [
        ("127.0.0.1", "ANONYMOUS", True),
        ("::1", "ANONYMOUS", True),
        ("::ffff:127.9.9.9", "ANONYMOUS", True),
        ("10.0.0.1", "alice", True),
        ("10.0.0.1", "ANONYMOUS", False),
        ("::ffff:10.0.0.1", "bob", False),
        ("fe80::1%eth0", "bob", False),
    ],
)
def test_only_administrators_may_alter(listener: Listener, address: str, principal: str, altered: bool) -> None:
    listener.answers = listener.answers_to(address, principal)
    wanted: Resource = (16, "a", [("metrics", 0, "*")])
    assert listener.alter(wanted) == [(0, None) if altered else (31, "Cluster authorization failed.")]
    assert listener.names() == (["a"] if altered else [])


def test_unauthorized_alteration_is_refused_per_resource(listener: Listener) -> None:
    listener.alter((16, "kept", [("metrics", 0, "*")]))
    listener.answers = listener.answers_to("10.0.0.1")
    asked: list[Resource] = [
        (16, "kept", [("metrics", 1, None)]),
        (2, "topic", [("a", 0, "b")]),
        (99, "", []),
        (16, "b", [("x", 9, "")]),
    ]
    assert [code for code, _ in listener.alter(*asked)] == [31, 29, 42, 31]
    assert listener.names() == ["kept"]


@pytest.mark.parametrize("version", range(14))
def test_metadata_lists_this_node_as_the_client_found_it_and_no_topics(listener: Listener, version: int) -> None:
    request_type = message_type("metadata", version, "request")
    rng = random.Random(version)
    for _ in range(30):
        request = random_entity(rng, request_type)
        reported = response("metadata", version, listener.answers[3](version, encode(request)))
        assert [(b.node_id, b.host, b.port) for b in reported.brokers] == [(0, "found.at", 1234)]
        assert version < 2 or reported.cluster_id == "the-cluster"
        asked = request.topics or ()
        assert len(reported.topics) == len(asked)
        for topic, wanted in zip(reported.topics, asked, strict=True):
            assert topic.error_code.name in ("unknown_topic_or_partition", "unknown_topic_id")
            assert topic.partitions == ()
            assert (topic.name or "") == (wanted.name or "")


@pytest.mark.parametrize("version", range(14))
def test_metadata_lists_a_topic_with_one_partition_at_this_node(version: int) -> None:
    request = encode(entity_of_fields(message_type("metadata", version, "request"), {}))  # for all
    node = sink.SinkNode("sink.example", 9092, "the-cluster")
    (topic,) = response("metadata", version, sink.metadata(request, version, node, "t")).topics
    (partition,) = topic.partitions
    assert (topic.name, topic.error_code.value, partition.error_code.value) == ("t", 0, 0)
    assert (partition.partition_index, partition.leader_id) == (0, 0)
    assert partition.replica_nodes == partition.isr_nodes == (0,)


def test_metadata_of_very_many_topics_is_refused(listener: Listener) -> None:
    with pytest.raises(ProtocolError, match="cannot answer for 20000 topics"):
        listener.answers[3](0, (20_000).to_bytes(4, "big") + bytes(2 * 20_000))


OFFERED = {3: (0, 13), 18: (0, 4), 32: (1, 4), 33: (0, 2), 44: (0, 1), 71: (0, 0), 72: (0, 0), 74: (0, 1)}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_answered(listener: Listener, version: int) -> None:
    reported = response("api_versions", version, listener.answers[18](version, b"\x05java\x065.0.0\x00"))
    assert reported.error_code.value == 0
    assert {key.api_key: (key.min_version, key.max_version) for key in reported.api_keys} == OFFERED
    assert OFFERED.keys() - {71, 72} == listener.answers.keys()


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("body", [b"\x06-java\x065.0.0\x00", b"\x01\x01\x00"])
def test_invalid_software_name_is_refused(listener: Listener, body: bytes, version: int) -> None:
    reported = response("api_versions", version, listener.answers[18](version, body))
    assert (reported.error_code.value, reported.api_keys) == (42, ())


def test_alteration_is_applied_and_written_to_the_file(listener: Listener) -> None:
    assert listener.alter((16, "one", [("metrics", 0, "a"), ("interval.ms", 0, "1000")])) == [(0, None)]
    assert listener.names() == ["one"]
    assert "one" in listener.rules.subscriptions
    described = requests.decoded(32, 4, listener.answers[32](4, requests.describe(4, [(16, "one", None)])))
    assert [entry.value for entry in described.results[0].configs] == ["1000", "", "a"]
    again = Listener(listener.file.path)
    again.file.load()
    assert again.names() == ["one"]


def test_legacy_alter_configs_is_applied(listener: Listener) -> None:
    listener.answers[33](2, requests.legacy(2, [(16, "one", [("metrics", "a")])]))
    assert listener.rules.resources == {"one": {"metrics": "a"}}


def test_no_op_alteration_writes_no_file(listener: Listener) -> None:
    assert listener.alter((16, "one", [("metrics", 1, "")])) == [(0, None)]
    assert not listener.file.path.exists()


def test_alteration_fails_when_the_file_lock_is_held(listener: Listener) -> None:
    directory = os.open(listener.file.path.parent, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    ((code, _),) = listener.alter((16, "one", [("metrics", 0, "a")]))
    os.close(directory)
    assert code == 56
    assert listener.alter((16, "one", [("metrics", 0, "a")])) == [(0, None)]


def test_alteration_is_refused_when_the_file_cannot_be_written(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "gone" / "subscriptions.yaml")
    ((code, message),) = listener.alter((16, "one", [("metrics", 0, "a")]))
    assert (code, message) == (56, "cannot store client metrics resources: No such file or directory")
    assert listener.names() == []


def test_alteration_is_refused_while_the_file_is_invalid(listener: Listener) -> None:
    listener.alter((16, "one", [("metrics", 0, "a")]))
    listener.file.path.write_text("{")
    ((code, message),) = listener.alter((16, "two", [("metrics", 0, "a")]))
    assert code == 56
    assert "not YAML" in (message or "")
    assert listener.names() == ["one"]
