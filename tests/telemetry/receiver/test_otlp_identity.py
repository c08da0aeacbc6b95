"""Maps attributes of the known plug-ins to one identity: evidence, claims and ambiguous attributes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from exporters.model import ANONYMOUS, UNKNOWN
from telemetry.receiver.otlp_identity import DIALECTS, NO_BROKER, Facts, Identity, OtlpCaller, facts_of, identity_of
from tests.kit.otlp_payloads import attributes

PLUG_IN = OtlpCaller("10.0.0.9", True, "otlp_grpc")
ANYBODY = OtlpCaller("10.0.0.9", False, "otlp_http")
ID = uuid.UUID("d3f1a2b4-c5e6-4f70-8192-a3b4c5d6e7f8")
KAFKA_ID = "0_GitMXmT3CBkqO0xdbn-A"  # the same by Kafka's Uuid.toString


def identity(
    stated: list[KeyValue], dialect: str = "any", sender: OtlpCaller = PLUG_IN, *, point: bool = False
) -> Identity:
    names = DIALECTS[dialect].of_point if point else DIALECTS[dialect].of_resource
    return identity_of(facts_of(stated, names), sender, "ours")


SENDERS: dict[str, dict[str, Any]] = {
    "kip-714": {
        "client_id": "app",
        "client_instance_id": KAFKA_ID,
        "client_software_name": "apache-kafka-java",
        "client_software_version": "4.3.1",
        "client_source_address": "10.1.2.3",
        "client_source_port": "4711",
        "principal": "alice",
        "kafka.broker.id": "2",
        "kafka.cluster.id": "theirs",
    },
    "instaclustr": {"clientId": "app", "clientSoftwareName": "apache-kafka-java", "clientSoftwareVersion": "4.3.1"},
    "monedula": {
        "client_id": "app",
        "client_instance_id": str(ID),
        "kafka.client.principal": "User:alice",
        "kafka.client.address": "/10.1.2.3",
        "kafka.cluster.id": "theirs",
        "kafka.node.id": 2,
    },
    "strimzi": {"client_id": "app", "client_instance_id": KAFKA_ID, "principal": "alice", "client_address": "10.1.2.3"},
}


@pytest.mark.parametrize("dialect", SENDERS)
@pytest.mark.parametrize("read_as", ["itself", "any"])
def test_attributes_of_each_plugin_are_mapped(dialect: str, read_as: str) -> None:
    stated = SENDERS[dialect]
    client = identity(attributes(**stated), dialect if read_as == "itself" else "any", point=dialect == "strimzi")
    assert client.client_id == "app"
    assert client.connection.listener == "OTLP_GRPC"
    assert client.connection.principal == (ANONYMOUS if dialect == "instaclustr" else "alice")
    assert client.connection.source_address == ("" if dialect == "instaclustr" else "10.1.2.3")
    assert client.connection.broker_id == (2 if dialect in ("kip-714", "monedula") else NO_BROKER)
    assert client.connection.cluster == ("theirs" if dialect in ("kip-714", "monedula") else "ours")
    assert client.connection.software_name == (UNKNOWN if dialect in ("monedula", "strimzi") else "apache-kafka-java")
    if dialect != "instaclustr":
        assert client.client_instance_id == ID.bytes


def test_configured_dialect_ignores_attributes_of_other_plugins() -> None:
    client = identity(attributes(clientId="app", principal="alice", client_id="other"), "instaclustr")
    assert (client.client_id, client.connection.principal) == ("app", ANONYMOUS)


def test_unauthenticated_sender_produces_claimed_identity() -> None:
    stated = attributes(**SENDERS["kip-714"])
    claimed = identity(stated, sender=ANYBODY)
    assert claimed.connection.principal == "claimed:alice"
    assert claimed.connection.cluster == "ours"
    assert claimed.connection.source_address == ANYBODY.address
    assert identity([], sender=ANYBODY).connection.principal == f"claimed:{ANONYMOUS}"


def test_last_value_of_a_repeated_attribute_wins() -> None:
    client = identity([*attributes(clientId="what the client sent"), *attributes(clientId="app")])
    assert (client.client_id, client.connection.principal) == ("app", ANONYMOUS)


def test_conflicting_attributes_produce_claimed_identity() -> None:
    client = identity(attributes(client_id="app", clientId="other", principal="alice"))
    assert client.connection.principal == "claimed:alice"
    assert identity(attributes(client_id="app", clientId="app", principal="alice")).connection.principal == "alice"


def test_missing_instance_id_is_derived_deterministically() -> None:
    derived, again = (identity(attributes(clientId="app")).client_instance_id for _ in range(2))
    assert derived == again
    assert len(derived) == 16
    others = [attributes(clientId="app-2"), attributes(clientId="app", client_instance_id="not an id")]
    assert derived not in [identity(other).client_instance_id for other in others]


@pytest.mark.parametrize("broker_id", ["", "-1", "one", "99999999999999999999", "2147483648", "\u0662"])
def test_invalid_broker_id_is_ignored(broker_id: str) -> None:
    client = identity(attributes(client_id="app", broker_id=broker_id))
    assert client.connection.broker_id == NO_BROKER


def test_text_attributes_are_truncated() -> None:
    client = identity(attributes(client_id="c" * 100_000, principal="p" * 100_000, client_software_name="s" * 100_000))
    assert len(client.client_id) == len(client.connection.principal) == len(client.connection.software_name) == 255


def test_non_text_attributes_are_ignored() -> None:
    odd = [KeyValue(key="client_id", value=AnyValue(bool_value=True)), KeyValue(key="principal")]
    assert facts_of(odd, DIALECTS["any"].of_resource) == Facts({}, False)
