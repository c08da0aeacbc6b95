"""A listener at `[::]` takes IPv4 and IPv6 clients, as one of Java does, and sees each at its own address."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka.admin import AdminClient

from headroom.config.settings import Address
from headroom.demo.processes import free_ports
from tests.kit.certificates import CertificateAuthority
from tests.kit.serving import PATIENCE_S, Served, config_file, eventually, rows

IPV4, IPV6 = "127.0.0.1", "::1"
Settings: TypeAlias = dict[str, str | int | float | bool]
PLAIN: Settings = {"enable.metrics.push": False}
ANY_CERTIFICATE: Settings = {**PLAIN, "security.protocol": "ssl", "enable.ssl.certificate.verification": False}


def at(host: str, port: int) -> str:
    return str(Address(host=host, port=port))


def url(host: str, port: int, path: str) -> str:
    return f"http://{at(host, port)}{path}"


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[Served, int, int, int]]:
    """A stand-alone sink of two processes, with its ports of Kafka, of Kafka with TLS, and of HTTP."""
    kafka, tls, http = free_ports(3)
    certificate, key = CertificateAuthority(tmp_path).issue("both")
    listener = {"listen": f"[::]:{tls}", "security_protocol": "SSL"}
    listener |= {"tls_certificate": str(certificate), "tls_key": str(key)}
    web = {"trusted_proxies": ["127.0.0.0/8", "::1/128"]}
    config = config_file(tmp_path, push_ms=100, listeners=[listener], web=web)
    with Served(tmp_path, "--listen", f"[::]:{kafka}", "--http", f"[::]:{http}", "--processes", "2", *config) as served:
        yield served, kafka, tls, http


@pytest.mark.clickhouse
def test_clients_of_both_families_are_served_and_seen(ports: tuple[Served, int, int, int]) -> None:
    served, kafka, tls, http = ports
    pushing = [AdminClient({"bootstrap.servers": at(host, kafka)}) for host in (IPV4, IPV6)]
    for host in (IPV4, IPV6):
        for port, how in ((kafka, PLAIN), (tls, ANY_CERTIFICATE)):
            for _ in range(3):  # both processes
                admin = AdminClient({"bootstrap.servers": at(host, port), **how})
                [broker] = admin.list_topics(timeout=PATIENCE_S).brokers.values()
                assert f"{broker.host} {broker.port}" == f"{host} {port}"  # not ::ffff:127.0.0.1
        with urllib.request.urlopen(url(host, http, "/readyz/kafka"), timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        request = urllib.request.Request(url(host, http, "/api/v1/status"), headers={"x-forwarded-user": "me"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # the network of a proxy is that of IPv4
            assert answer.status == 200
    addresses = "SELECT DISTINCT toString(source_address) FROM headroom.pushes ORDER BY 1"
    assert eventually(lambda: rows(served.sql, addresses), lambda found: len(found) == 2) == [(IPV4,), (IPV6,)]
    del pushing  # librdkafka pushed while they lived
