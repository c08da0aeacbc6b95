"""A gateway at one port that distinguishes brokers by TLS server name, in front of three real brokers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headroom.demo.jvm import Jvm
from telemetry.gateway.broker_ports import BrokerNames
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from tests.kit.secure_clients import client
from tests.kit.secure_cluster import SecureCluster
from tests.telemetry.conftest import RunningGateway, now_ms
from tests.telemetry.gateway.security.conftest import broker_security

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
