"""Quotas on addresses behind a load balancer with PROXY headers and two network processes: the gateway serves, refuses
and delays as many connections as the broker does by itself."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served, eventually, levels_by_client
from tests.telemetry.wire.proxy_hop import proxy_hop

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.slow]

CLUSTER = "addresses"
MOST = 15
RATE = 2
API_VERSIONS = b"\x00\x00\x00\x13\x00\x12\x00\x00\x00\x00\x00\x01\x00\x09addresses"
UNDELAYED_S = 5.0
ANSWERED, CLOSED = "answered", "closed"


class Behind(NamedTuple):
    """Where clients connect: to the broker itself, and to the load balancer before the gateway."""

    admin: Admin
    broker: tuple[str, int]
    balancer: tuple[str, int]
    http: str


@pytest.fixture
def behind(java: str, kafka_libs: Path, jvm: Jvm, clickhouse: RunningClickHouse, tmp_path: Path) -> Iterator[Behind]:
    (tmp_path / "serve.yaml").write_text("processes: 2\nlistener: {proxy_protocol: v2, proxy_networks: [127.0.0.1]}\n")
    properties = {"max.connections.per.ip": str(MOST), "max.connections.per.ip.overrides": "127.0.0.1:1000"}
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalCluster(java, kafka_libs, properties=properties))
        admin = stack.enter_context(Admin(jvm, kafka.bootstrap))
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER, "--config", str(tmp_path / "serve.yaml")]
        served = stack.enter_context(Served(tmp_path, *arguments, environment=clickhouse.environment))
        balancer = stack.enter_context(proxy_hop(_address(served.kafka)))
        yield Behind(admin, _address(kafka.bootstrap), balancer, served.http)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class Tried(NamedTuple):
    """A connection that was answered, which stays open, or closed after a time."""

    end: str
    after_s: float
    connection: socket.socket


def connect(to: tuple[str, int], source: str) -> Tried:
    began_s = time.monotonic()
    connection = socket.create_connection(to, timeout=60, source_address=(source, 0))
    try:
        connection.sendall(API_VERSIONS)
        end = ANSWERED if connection.recv(4) else CLOSED
    except ConnectionError:
        end = CLOSED
    return Tried(end, time.monotonic() - began_s, connection)


def tried(to: tuple[str, int], sources: list[str]) -> list[Tried]:
    """All at the same time."""
    with ThreadPoolExecutor(len(sources)) as pool:
        return list(pool.map(lambda source: connect(to, source), sources))


def ends(of: list[Tried]) -> Counter[str]:
    """How many were answered and closed; all are closed now."""
    for one in of:
        one.connection.close()
    return Counter(one.end for one in of)


def test_connections_of_addresses(behind: Behind) -> None:
    many = [f"127.0.1.{number}" for number in range(1, 31)]
    assert ends(tried(behind.broker, many)) == ends(tried(behind.balancer, many)) == {ANSWERED: 30}
    one = ["127.0.0.9"] * 20
    by_broker, by_gateway = tried(behind.broker, one), tried(behind.balancer, one)
    assert ends(by_broker) == ends(by_gateway) == {ANSWERED: MOST, CLOSED: 20 - MOST}
    eventually(lambda: ends(tried(behind.balancer, one[:MOST])), lambda found: found == {ANSWERED: MOST})


def test_rate_of_addresses(behind: Behind) -> None:
    behind.admin.alter_quota({"ip": "127.0.0.1"}, {"connection_creation_rate": 10_000.0})
    behind.admin.alter_quota({"ip": None}, {"connection_creation_rate": float(RATE)})
    probes = (f"127.0.2.{number}" for number in range(1, 255))
    for to in (behind.broker, behind.balancer):  # until the limit is known there
        while not _one_by_one(to, next(probes))[CLOSED]:
            time.sleep(0.05)
    by_broker = _one_by_one(behind.broker, "127.0.0.30")
    by_gateway = _one_by_one(behind.balancer, "127.0.0.30")
    assert by_broker[ANSWERED] == pytest.approx(RATE * 10, abs=2)
    assert by_gateway[ANSWERED] == pytest.approx(by_broker[ANSWERED], abs=2)
    others = [f"127.0.1.{number}" for number in range(1, 31)]
    by_broker_at_once, by_gateway_at_once = tried(behind.broker, others), tried(behind.balancer, others)
    assert ends(by_broker_at_once) == ends(by_gateway_at_once) == {ANSWERED: 30}
    assert max(one.after_s for one in by_gateway_at_once) < UNDELAYED_S  # as one address they would wait for 15 s
    # The ten seconds of its rate may begin in the last ones of a minute, of which they are less than 5 %.
    shown = eventually(
        lambda: levels_by_client(behind.http, CLUSTER, "connection_creation_rate").get("127.0.0.30", {}),
        lambda row: (row.get("utilization_p95") or 0) > 0.9,
    )
    assert (shown["limit"], shown["matched_entity"]) == (RATE, "ip=<default>")
    assert shown["level"] in ("critical", "throttled"), shown
    assert "connection_creation_rate 2.0 connections/s of ip=<default>" in shown["reason"]


def _one_by_one(to: tuple[str, int], source: str) -> Counter[str]:
    """25 connections, each closed when it is answered, so that only their rate is limited."""
    found: Counter[str] = Counter()
    for _ in range(25):
        found += ends([connect(to, source)])
        if found[CLOSED]:
            break
    return found
