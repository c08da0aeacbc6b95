"""Client certificates at the listener, the gateway's own certificate at the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exporters.model import RecordKind
from exporters.spool.records import decode_push
from tests.kit.secure_clients import LibrdkafkaClient
from tests.kit.secure_cluster import SecureCluster
from tests.telemetry.gateway.security.conftest import StartGateway

pytestmark = [pytest.mark.kafka, pytest.mark.java]


def test_certificate_subject_is_the_principal_and_missing_one_is_refused(
    secure_cluster: SecureCluster, secure_gateway: StartGateway, new_secure_topic: Callable[[str], str]
) -> None:
    gateway = secure_gateway("SSL", "MTLS", "required")
    topic = new_secure_topic("mtls")
    config = {"security.protocol": "ssl", "ssl.ca.location": str(secure_cluster.authority.ca)}
    own = {
        "ssl.certificate.location": str(secure_cluster.directory / "client.pem"),
        "ssl.key.location": str(secure_cluster.directory / "client.key"),
    }
    client = LibrdkafkaClient(gateway.bootstrap, "mtls", config | own)
    client.produce(topic, [b"value"] * 100)
    assert client.consume(topic, 100) == [b"value"] * 100
    assert gateway.meter.clients() == {("alice", "mtls")}

    def pushers() -> set[str]:
        pushes = [decode_push(body) for kind, body in gateway.records if kind is RecordKind.PUSH]
        return {push.connection.principal for push in pushes}

    client.produce(topic, [b"more"], lambda: bool(pushers()))
    assert pushers() == {"alice"}
    nobody = LibrdkafkaClient(gateway.bootstrap, "nobody", config | {"message.timeout.ms": "5000"})
    with pytest.raises(AssertionError):
        nobody.produce(topic, [b"value"])
