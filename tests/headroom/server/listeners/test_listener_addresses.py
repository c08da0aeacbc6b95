"""Internal and external clients at separate listeners: each gets the addresses of its own listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.processes import LOOPBACK, free_ports
from tests.kit.certificates import CertificateAuthority
from tests.kit.serving import PATIENCE_S, Served, eventually, rows


@pytest.fixture
def served(kafka: LocalCluster, tmp_path: Path) -> Iterator[tuple[Served, str, Path]]:
    """Two network processes, PLAINTEXT inside, SSL outside; the address outside, and its CA."""
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("outside")
    (port,) = free_ports(1)
    config = tmp_path / "headroom.yaml"
    config.write_text(
        f"listeners: [{{name: outside, listen: '{LOOPBACK}:{port}', advertised_host: localhost,"
        f" security_protocol: SSL, tls_certificate: '{certificate}', tls_key: '{key}'}}]\n"
    )
    with Served(tmp_path, "--upstream", kafka.bootstrap, "--processes", "2", "--config", str(config)) as running:
        yield running, f"localhost:{port}", authority.ca


@pytest.mark.kafka
@pytest.mark.clickhouse
def test_each_listener_advertises_its_own_address(
    served: tuple[Served, str, Path], kafka: LocalCluster, new_topic: Callable[[], str]
) -> None:
    inside, outside, ca = served
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(ca)}
    topic, brokers = new_topic(), kafka.bootstrap.rpartition(":")[2]
    sides: list[tuple[str, dict[str, str], str]] = [(inside.kafka, {}, LOOPBACK), (outside, tls, "localhost")]
    ports = set()
    for bootstrap, config, host in sides:
        for _ in range(4):  # so that both processes get some of them
            producer = Producer({"bootstrap.servers": bootstrap, "client.id": host, **config})
            (broker,) = producer.list_topics(topic, PATIENCE_S).brokers.values()
            assert (broker.host, broker.port != int(brokers)) == (host, True)
            ports.add((host, broker.port))
            producer.produce(topic, b"value")
            assert producer.flush(PATIENCE_S) == 0
    assert len(ports) == 2
    query = "SELECT DISTINCT client_id FROM headroom.quota_usage ORDER BY client_id"
    eventually(lambda: inside.ready()[0], lambda status: status == 200)
    assert eventually(lambda: rows(inside.sql, query), lambda stored: len(stored) == 2) == [(LOOPBACK,), ("localhost",)]
