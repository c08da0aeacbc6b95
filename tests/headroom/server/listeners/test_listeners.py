"""The addresses and ports that clients see at listeners, clients of IPv4 and IPv6 at one, and a cluster that is not
Apache's."""

import json
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from headroom.config.settings import Address
from headroom.demo.broker import LocalCluster
from headroom.demo.processes import LOOPBACK, free_ports
from tests.kit.certificates import CertificateAuthority
from tests.kit.free_ports import free_range
from tests.kit.proxy import forward
from tests.kit.serving import PATIENCE_S, Served, config_file, eventually, rows


@pytest.fixture
def served(kafka: LocalCluster, tmp_path: Path) -> Iterator[tuple[Served, str, Path]]:
    """Two network processes, PLAINTEXT inside, SSL outside; the address outside, and its CA."""
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("outside")
    (port,) = free_ports(1)
    listener = {"name": "outside", "listen": f"{LOOPBACK}:{port}", "advertised_host": "localhost"}
    listener |= {"security_protocol": "SSL", "tls_certificate": str(certificate), "tls_key": str(key)}
    config = config_file(tmp_path, listeners=[listener])
    with Served(tmp_path, "--upstream", kafka.bootstrap, "--processes", "2", *config) as running:
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


@pytest.fixture
def mock_brokers() -> Iterator[str]:
    """The bootstrap addresses of three brokers, which are threads of this client."""
    owner = Producer({"test.mock.num.brokers": "3", "bootstrap.servers": "none:1", "log_level": 0})
    brokers = owner.list_topics(timeout=PATIENCE_S).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(0)


COUNT = 5  # bootstrap, a broker 0 that there is not, and 1 to 3


@contextmanager
def relays(outside: int, inside: int) -> Iterator[Counter[int]]:
    """Ports from `outside` on lead to those from `inside` on; how many connections each took."""
    taken: Counter[int] = Counter()

    def accept_all(listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                taken[port] += 1
                try:
                    forward(client, socket.create_connection((LOOPBACK, port - outside + inside)))
                except ConnectionRefusedError:  # nothing listens there any more
                    client.close()

    with ExitStack() as stack:
        for port in range(outside, outside + COUNT):
            listener = stack.enter_context(socket.create_server((LOOPBACK, port)))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=accept_all, args=(listener, port), daemon=True).start()
        yield taken


@pytest.mark.clickhouse
def test_clients_reach_each_broker_by_the_ports_that_they_see(mock_brokers: str, tmp_path: Path) -> None:
    inside = free_range(2 * COUNT)
    outside = inside + COUNT
    config = config_file(tmp_path, gateway={"advertised_host": "localhost"}, listener={"advertised_port": outside})
    listen = ("--listen", f"{LOOPBACK}:{inside}", "--processes", "2", *config)
    with relays(outside, inside) as taken, Served(tmp_path, "--upstream", mock_brokers, *listen) as served:
        assert served.kafka == f"{LOOPBACK}:{inside}"
        producer = Producer(
            {"bootstrap.servers": f"localhost:{outside}", "broker.address.family": "v4", "log_level": 0}
        )
        metadata = producer.list_topics("orders", timeout=PATIENCE_S)
        assert {broker.id: (broker.host, broker.port) for broker in metadata.brokers.values()} == {
            node: ("localhost", outside + 1 + node) for node in (1, 2, 3)
        }
        leaders = {partition.leader for partition in metadata.topics["orders"].partitions.values()}
        for partition in metadata.topics["orders"].partitions:
            producer.produce("orders", b"value", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        assert taken[outside] > 0
        assert all(taken[outside + 1 + leader] for leader in leaders)
        del producer


RECORDS = 200
USAGE = "SELECT count() FROM headroom.quota_usage WHERE client_id = 'app' AND rate > 0"
WARNINGS = (
    "configuration of broker 1 cannot be read",
    "ACLs with hosts cannot be read",
    "the cluster has no quotas that can be read: limits and levels are unknown",
)


@pytest.mark.clickhouse
def test_clients_pass_and_what_is_unknown_is_named_once(mock_brokers: str, tmp_path: Path) -> None:
    with Served(tmp_path, "--upstream", mock_brokers) as served:
        producer = Producer({"bootstrap.servers": served.kafka, "client.id": "app", "log_level": 0})
        for _ in range(RECORDS):
            producer.produce("orders", b"x" * 100)
        assert producer.flush(PATIENCE_S) == 0
        group = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": served.kafka, **group})
        consumer.subscribe(["orders"])
        assert len(consumer.consume(RECORDS, timeout=PATIENCE_S)) == RECORDS
        consumer.close()
        eventually(lambda: rows(served.sql, USAGE), lambda counted: counted != [(0,)])
        eventually(lambda: served.ready()[0], lambda status: status == 200)
        del producer
    entries = [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]
    warnings = [entry.get("fact") or entry["event"] for entry in entries if entry["level"] == "warning"]
    assert len(warnings) == len(set(warnings))
    assert [sum(text in warning for warning in warnings) for text in WARNINGS] == [1, 1, 1]
    assert [entry for entry in entries if entry["level"] == "error"] == []


IPV4, IPV6 = "127.0.0.1", "::1"
Settings: TypeAlias = dict[str, str | int | float | bool]
PLAIN: Settings = {"enable.metrics.push": False}
ANY_CERTIFICATE: Settings = {**PLAIN, "security.protocol": "ssl", "enable.ssl.certificate.verification": False}


def at(host: str, port: int) -> str:
    return str(Address(host=host, port=port))


def url(host: str, port: int, path: str) -> str:
    return f"http://{at(host, port)}{path}"


@pytest.mark.clickhouse
def test_clients_of_both_families_are_served_and_seen(tmp_path: Path) -> None:
    kafka, tls, http = free_ports(3)
    certificate, key = CertificateAuthority(tmp_path).issue("both")
    listener = {"listen": f"[::]:{tls}", "security_protocol": "SSL"}
    listener |= {"tls_certificate": str(certificate), "tls_key": str(key)}
    web = {"trusted_proxies": ["127.0.0.0/8", "::1/128"]}
    config = config_file(tmp_path, push_ms=100, listeners=[listener], web=web)
    with Served(tmp_path, "--listen", f"[::]:{kafka}", "--http", f"[::]:{http}", "--processes", "2", *config) as served:
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
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # a proxy's network is that of IPv4
                assert answer.status == 200
        addresses = "SELECT DISTINCT toString(source_address) FROM headroom.pushes ORDER BY 1"
        assert eventually(lambda: rows(served.sql, addresses), lambda found: len(found) == 2) == [(IPV4,), (IPV6,)]
        del pushing  # librdkafka pushed while they lived
