"""Client certificates at the listener. At the brokers there is the gateway's own, or one for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from exporters.model import RecordKind
from headroom.demo.jvm import Admin, Jvm
from headroom.server.processes.security import UpstreamCertificates
from quota_metrics.kafka.properties import read_properties
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from tests.kit.secure_clients import LibrdkafkaClient
from tests.kit.secure_cluster import SecureCluster
from tests.kit.serving import eventually
from tests.quota_metrics.measure.quota_truth import Truth
from tests.telemetry.conftest import RunningGateway
from tests.telemetry.gateway.security.conftest import StartGateway, broker_security, telemetry_users

pytestmark = [pytest.mark.kafka, pytest.mark.java]

USER = "CN=carol,O=Acme"


def config(cluster: SecureCluster, name: str = "") -> dict[str, str]:
    """Of librdkafka. `name`: of the client's certificate, if it has one."""
    trusting = {"security.protocol": "ssl", "ssl.ca.location": str(cluster.authority.ca)}
    certificate = cluster.directory / f"{name}.pem"
    own = {
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(certificate.with_suffix(".key")),
    }
    return trusting | own if name else trusting


def test_certificate_subject_is_the_principal_and_missing_one_is_refused(
    secure_cluster: SecureCluster, secure_gateway: StartGateway, new_secure_topic: Callable[[str], str]
) -> None:
    gateway = secure_gateway("SSL", "MTLS", "required")
    topic = new_secure_topic("mtls")
    client = LibrdkafkaClient(gateway.bootstrap, "mtls", config(secure_cluster, "client"))
    client.produce(topic, [b"value"] * 100, lambda: RecordKind.PUSH in dict(gateway.records))
    assert client.consume(topic, 100) == [b"value"] * 100
    assert gateway.meter.clients() == {("alice", "mtls")}
    assert RecordKind.PUSH in dict(gateway.records)
    assert telemetry_users(gateway, "mtls") == {"alice"}
    nobody = config(secure_cluster) | {"message.timeout.ms": "5000"}
    with pytest.raises(AssertionError):
        LibrdkafkaClient(gateway.bootstrap, "nobody", nobody).produce(topic, [b"value"])


@pytest.fixture
def impersonating(secure_cluster: SecureCluster, tmp_path: Path) -> Iterator[RunningGateway]:
    """mTLS on both sides; only carol has a certificate for the brokers."""
    authority = secure_cluster.authority
    authority.issue("carol", "/O=Acme/CN=carol")
    tls = ListenerTls(*authority.issue("standing-in"), authority.ca, "required")
    brokers = broker_security(secure_cluster, "MTLS")
    directory = tmp_path / "principals"
    directory.mkdir()
    (directory / f"{quote(USER, safe='')}.pem").write_bytes(authority.store("carol").read_bytes())
    properties = read_properties(secure_cluster.command_config("MTLS"))
    security = ListenerSecurity(
        protocol="SSL",
        tls=tls.context,
        upstream_tls=brokers.tls,
        upstream_tls_of=UpstreamCertificates(directory, properties).context_of,
    )
    gateway = RunningGateway(secure_cluster.bootstrap("MTLS"), tmp_path / "spool", security=security, admin=brokers)
    yield gateway
    gateway.stop()


def test_broker_meters_the_client_instead_of_the_gateway(
    impersonating: RunningGateway, jvm: Jvm, secure_cluster: SecureCluster, new_secure_topic: Callable[[str], str]
) -> None:
    topic = new_secure_topic("standing-in")
    with Admin(jvm, secure_cluster.bootstrap("PLAINTEXT")) as admin:
        admin.alter_quota({"user": USER}, {"producer_byte_rate": 10_000_000.0})

    truths = [Truth(jvm, port) for port in secure_cluster.jmx_ports]
    carol = LibrdkafkaClient(impersonating.bootstrap, "carols", config(secure_cluster, "carol"))

    def metered() -> bool:
        carol.produce(topic, [b"value"] * 100)
        bucket = ("producer_byte_rate", quote(USER, safe=""), "")  # as Kafka sanitizes names for JMX
        return any(bucket in truth.sensors() for truth in truths)

    eventually(metered, bool)
    assert impersonating.meter.clients() == {(USER, "carols")}
    alices = config(secure_cluster, "client") | {"message.timeout.ms": "5000"}
    with pytest.raises(AssertionError):
        LibrdkafkaClient(impersonating.bootstrap, "alices", alices).produce(topic, [b"value"])
    assert impersonating.meter.clients() == {(USER, "carols")}
    for truth in truths:
        truth.close()
