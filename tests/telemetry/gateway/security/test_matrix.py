"""Each security protocol, mechanism and client family through a gateway to a real cluster of three brokers: the same
records come back, and usage and telemetry name the user that the broker authenticated."""

import hashlib
from collections.abc import Callable

import pytest

from exporters.model import ANONYMOUS
from headroom.demo.jvm import Jvm
from tests.kit.secure_clients import client
from tests.kit.secure_cluster import MECHANISMS, SecureCluster
from tests.telemetry.gateway.security.conftest import StartGateway, pushes_of, telemetry_users

pytestmark = [pytest.mark.kafka, pytest.mark.java]

FAMILIES = ("java", "librdkafka", "kafka-python")
CELLS = [("PLAINTEXT", ""), ("SSL", "")] + [
    (protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS
]
RECORDS = [bytes([number]) * (100 + 50 * number) for number in range(200)]
COMMITTED = [b"committed %d" % number for number in range(50)]


def checksum(values: list[bytes]) -> str:
    return hashlib.sha256(b"".join(sorted(values))).hexdigest()


@pytest.mark.parametrize(
    ("protocol", "mechanism", "family"),
    [
        pytest.param(*cell, family, marks=() if family == FAMILIES[number % 3] else pytest.mark.release)
        for number, cell in enumerate(CELLS)
        for family in FAMILIES
    ],
)
def test_same_protocol_on_both_sides(
    protocol: str,
    mechanism: str,
    family: str,
    jvm: Jvm,
    secure_cluster: SecureCluster,
    secure_gateway: StartGateway,
    new_secure_topic: Callable[[str], str],
) -> None:
    gateway, ca = secure_gateway(protocol, protocol), secure_cluster.authority.ca
    topic = new_secure_topic(f"{family}-{protocol}-{mechanism}")
    through = client(family, jvm, gateway.bootstrap, protocol, mechanism, "alice", ca)
    client_id, earlier = f"{family}-{protocol}-{mechanism or 'none'}".lower(), len(gateway.records)
    pushes = family != "kafka-python"
    through.produce(topic, RECORDS, lambda: not pushes or bool(pushes_of(gateway, client_id, earlier)))
    through.transact(topic, COMMITTED, [b"aborted"] * 10)
    expected_records = RECORDS + COMMITTED
    assert checksum(through.consume(topic, len(expected_records))) == checksum(expected_records)
    direct = client("librdkafka", jvm, secure_cluster.bootstrap("PLAINTEXT"), "PLAINTEXT", "", "alice", ca)
    assert checksum(direct.consume(topic, len(expected_records))) == checksum(expected_records)
    expected = "alice" if mechanism else ANONYMOUS
    usage = {pair for pair in gateway.meter.clients() if pair[1] == client_id}
    assert usage == {(expected, client_id)}
    if pushes:
        assert pushes_of(gateway, client_id)
        assert telemetry_users(gateway, client_id) == {expected}


@pytest.mark.parametrize(
    ("listener", "upstream", "mechanism"),
    [
        pytest.param("SSL", "PLAINTEXT", "", marks=pytest.mark.release),
        pytest.param("PLAINTEXT", "SSL", "", marks=pytest.mark.release),
        ("SASL_SSL", "SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SASL_SSL", "PLAIN"),
    ],
)
def test_different_protocol_on_each_side(
    listener: str,
    upstream: str,
    mechanism: str,
    jvm: Jvm,
    secure_cluster: SecureCluster,
    secure_gateway: StartGateway,
    new_secure_topic: Callable[[str], str],
) -> None:
    gateway = secure_gateway(listener, upstream)
    topic = new_secure_topic(f"mixed-{listener}-{upstream}")
    ca = secure_cluster.authority.ca
    through = client("librdkafka", jvm, gateway.bootstrap, listener, mechanism, "bob", ca)
    through.produce(topic, RECORDS)
    assert checksum(through.consume(topic, len(RECORDS))) == checksum(RECORDS)
    assert {user for user, _ in gateway.meter.clients()} == {"bob" if mechanism else ANONYMOUS}
