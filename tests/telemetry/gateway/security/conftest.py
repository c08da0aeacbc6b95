"""A secured cluster of three brokers, and gateways in front of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporters.model import Push, RecordKind
from exporters.spool.records import decode_instance, decode_push
from headroom.demo.jvm import Admin, Jvm
from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.properties import read_properties, security
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from telemetry.gateway.security.ssl_principal import principal_mapper
from tests.kit.secure_cluster import SecureCluster
from tests.telemetry.conftest import RunningGateway

StartGateway = Callable[..., RunningGateway]


@pytest.fixture(scope="session")
def secure_cluster(java: str, kafka_libs: Path) -> Iterator[SecureCluster]:
    with SecureCluster(java, kafka_libs) as running:
        running.authority.issue("listener")
        running.authority.issue("client", "/C=DE/O=Acme/CN=alice")
        yield running


@pytest.fixture(scope="session")
def secure_gateway(secure_cluster: SecureCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """`(listener, upstream)`: the security protocols of its two sides; a gateway for each pair."""
    running: dict[tuple[str, str, str], RunningGateway] = {}

    def start(listener: str, upstream: str, client_auth: str = "none") -> RunningGateway:
        key = (listener, upstream, client_auth)
        if key not in running:
            brokers = broker_security(secure_cluster, upstream)
            running[key] = RunningGateway(
                secure_cluster.bootstrap(upstream),
                tmp_path_factory.mktemp("spool"),
                security=listener_security(secure_cluster, listener, client_auth, brokers),
                admin=brokers,
            )
            running[key].rules.replace_all({"all": {"metrics": "*", "interval.ms": "500"}}, 0)
        return running[key]

    yield start
    for gateway in running.values():
        gateway.stop()


@pytest.fixture(scope="session")
def new_secure_topic(jvm: Jvm, secure_cluster: SecureCluster) -> Callable[[str], str]:
    def create(name: str) -> str:
        with Admin(jvm, secure_cluster.bootstrap("PLAINTEXT")) as admin:
            admin.create_topics([name], partitions=3, replicas=1)
        return name

    return create


def broker_security(cluster: SecureCluster, protocol: str) -> Security:
    return security(read_properties(cluster.command_config(protocol)))


def listener_security(cluster: SecureCluster, protocol: str, client_auth: str, brokers: Security) -> ListenerSecurity:
    tls = None
    if protocol.endswith("SSL"):
        certificate = cluster.directory / "listener.pem"
        client_ca = None if client_auth == "none" else cluster.authority.ca
        tls = ListenerTls(certificate, certificate.with_suffix(".key"), client_ca, client_auth)
    return ListenerSecurity(
        protocol=protocol,
        tls=tls.context if tls else None,
        upstream_tls=brokers.tls,
        principal_of=principal_mapper("RULE:^CN=(.*?),.*$/$1/, DEFAULT"),
    )


def pushes_of(gateway: RunningGateway, client_id: str, since: int = 0) -> list[Push]:
    """A client's pushes among the spool's records; `since`: without the first ones."""
    pushes = [decode_push(body) for kind, body in gateway.records[since:] if kind is RecordKind.PUSH]
    return [push for push in pushes if push.client_id == client_id]


def telemetry_users(gateway: RunningGateway, client_id: str) -> set[str]:
    """Principals of the spool's records of a client."""
    users = set()
    for kind, body in gateway.records:
        record = decode_push(body) if kind is RecordKind.PUSH else decode_instance(body)
        if record.client_id == client_id:
            users.add(record.connection.principal)
    return users
