"""Clients of a secured cluster of three brokers: server names, certificates on both sides, refusals, renewed logins."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from exporters.model import RecordKind
from headroom.clock import now_ms
from headroom.demo.jvm import Admin, Jvm
from headroom.server.processes.security import UpstreamCertificates
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.authentication import Mechanism, OAuthBearer, Plain, Scram, Security
from quota_metrics.kafka.errors import ClusterError
from quota_metrics.kafka.oauthbearer import unsecured
from quota_metrics.kafka.properties import read_properties
from telemetry.gateway.broker_ports import BrokerNames
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from tests.kit.secure_clients import JavaClient, LibrdkafkaClient, client
from tests.kit.secure_cluster import REAUTHENTICATION_MS, SecureCluster
from tests.kit.serving import eventually
from tests.quota_metrics.measure.quota_truth import Truth
from tests.telemetry.conftest import RunningGateway
from tests.telemetry.gateway.security.conftest import StartGateway, broker_security, pushes_of, telemetry_users

pytestmark = [pytest.mark.kafka, pytest.mark.java]

DOMAIN = "gateway.example"
HOSTS = [f"bootstrap.{DOMAIN}", *(f"broker-{number}.{DOMAIN}" for number in (1, 2, 3))]
RECORDS = [b"%d" % number for number in range(300)]


@pytest.fixture
def named(secure_cluster: SecureCluster, tmp_path: Path) -> Iterator[RunningGateway]:
    tls = ListenerTls(*secure_cluster.authority.issue("named", host_name=f"*.{DOMAIN}"), None, "none")
    brokers = broker_security(secure_cluster, "SASL_SSL")
    security = ListenerSecurity(
        protocol="SASL_SSL", tls=tls.context, upstream_tls=brokers.tls, server_names=tls.server_names
    )
    upstream = secure_cluster.bootstrap("SASL_SSL")
    names = BrokerNames(f"broker-{{id}}.{DOMAIN}")
    gateway = RunningGateway(upstream, tmp_path, security=security, admin=brokers, names=names)
    yield gateway
    gateway.stop()


@pytest.fixture
def java_hosts(java: str, kafka_libs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jvm]:
    """A JVM that resolves the names."""
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in [*HOSTS, "localhost"]))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djdk.net.hosts.file={hosts}")
    with Jvm(java, kafka_libs) as running:
        yield running


def test_clients_reach_every_broker_by_server_name(
    named: RunningGateway,
    java_hosts: Jvm,
    secure_cluster: SecureCluster,
    new_secure_topic: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if host in HOSTS else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    bootstrap = f"bootstrap.{DOMAIN}:{named.bootstrap.rpartition(':')[2]}"
    for family in ("java", "kafka-python"):
        topic = new_secure_topic(f"named-{family}")  # a partition at each broker
        through = client(family, java_hosts, bootstrap, "SASL_SSL", "PLAIN", "bob", secure_cluster.authority.ca)
        through.produce(topic, RECORDS)
        assert sorted(through.consume(topic, len(RECORDS))) == sorted(RECORDS)

    async def brokers() -> set[int]:
        return {row.broker_id for row in named.meter.samples(now_ms())}

    assert named.run(brokers()) == {1, 2, 3}


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


def expired() -> str:
    return unsecured({"sub": "alice"}, now_s=lambda: time.time() - 86_400)


def refusal(bootstrap: str, mechanism: Mechanism) -> str:
    """The error that Headroom's admin client reports, without the address."""

    async def ask() -> str:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        async with aclosing(KafkaAdmin([(host, int(port))], security=Security(sasl=mechanism))) as admin:
            with pytest.raises(ClusterError) as refused:
                await admin.describe_cluster()
        return str(refused.value).partition(" did not accept")[2]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "mechanism",
    [
        Plain("alice", "not-her-secret"),
        Scram("sha256", "alice", "not-her-secret"),
        Scram("sha512", "mallory", "any"),
        OAuthBearer(expired),
    ],
    ids=lambda mechanism: mechanism.name,
)
def test_broker_refusal_is_forwarded_and_leaves_no_principal(
    mechanism: Mechanism, secure_cluster: SecureCluster, secure_gateway: StartGateway
) -> None:
    gateway = secure_gateway("SASL_PLAINTEXT", "SASL_PLAINTEXT")
    reported = refusal(gateway.bootstrap, mechanism)
    assert reported == refusal(secure_cluster.bootstrap("SASL_PLAINTEXT"), mechanism)
    assert reported
    assert "secret" not in reported
    assert telemetry_users(gateway, "headroom") == set()
    assert "mallory" not in {user for user, _ in gateway.meter.clients()}


@pytest.mark.parametrize("family", ["java", pytest.param("librdkafka", marks=pytest.mark.release)])
def test_clients_reauthenticate_while_pushing(
    family: str,
    jvm: Jvm,
    secure_cluster: SecureCluster,
    secure_gateway: StartGateway,
    new_secure_topic: Callable[[str], str],
) -> None:
    gateway = secure_gateway("SASL_PLAINTEXT", "SASL_PLAINTEXT")
    topic = new_secure_topic(f"again-{family}")
    client_id = f"again-{family}"
    config = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    client = (
        JavaClient(jvm, gateway.bootstrap, client_id, secure_cluster.client_properties("SASL_PLAINTEXT"))
        if family == "java"
        else LibrdkafkaClient(gateway.bootstrap, client_id, config | {"sasl.password": "alice-secret"})
    )

    def pushes_for_ms() -> int:
        times = [push.received_at_ms for push in pushes_of(gateway, client_id)]
        return max(times, default=0) - min(times, default=0)

    client.produce(topic, [b"first"] * 10, lambda: pushes_for_ms() > 2 * REAUTHENTICATION_MS)
    assert {push.connection.principal for push in pushes_of(gateway, client_id)} == {"alice"}
    assert pushes_for_ms() > 2 * REAUTHENTICATION_MS
