"""headroom/server/processes/address_quotas.py: whose limits hold for which broker."""

import asyncio
import math
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from headroom.clock import now_ms
from headroom.server.processes.address_quotas import AddressQuotas, Mode
from quota_metrics.cluster.facts import BrokerFacts, ClusterFacts
from quota_metrics.measure.connection_quotas import ADMITTED
from quota_metrics.windows import QuotaWindow

RATE = "connection_creation_rate"
LIMITED = ClusterFacts(brokers=(BrokerFacts(1, configs={"max.connections.per.ip": "1"}), BrokerFacts(2)))


def address_quotas(mode: Mode = "enforce") -> AddressQuotas:
    return AddressQuotas("c", "g", lambda _: QuotaWindow(), mode)


def follow(quotas: AddressQuotas, facts: ClusterFacts) -> None:
    asyncio.run(quotas.follow_facts(facts))


def test_broker_that_is_missing_from_a_reading_keeps_its_limits() -> None:
    quotas = address_quotas()
    follow(quotas, LIMITED)
    follow(quotas, ClusterFacts(brokers=(BrokerFacts(2),)))
    assert quotas.connect("192.0.2.1", 1) == ADMITTED
    assert quotas.connect("192.0.2.1", 1) != ADMITTED
    assert quotas.gate.is_limited
    follow(quotas, ClusterFacts(brokers=(BrokerFacts(1),)))  # the limit was removed
    assert not quotas.gate.is_limited


def test_who_observes_measures_and_admits_everybody() -> None:
    quotas = address_quotas("observe")
    follow(quotas, LIMITED)
    assert not quotas.gate.is_limited  # by the number of connections: nobody measures it
    quotas.follow_rules({(("ip", None),): {RATE: 1.0}})
    assert [quotas.connect("192.0.2.1", 1) for _ in range(40)] == [ADMITTED] * 40
    (row,) = quotas.samples(now_ms())
    assert (row.ip, row.limit, row.throttled_requests > 0) == ("192.0.2.1", 1.0, True)


def test_who_is_off_measures_nothing() -> None:
    quotas = address_quotas("off")
    follow(quotas, LIMITED)
    quotas.follow_rules({(("ip", None),): {RATE: 1.0}})
    assert [quotas.connect("192.0.2.1", 1) for _ in range(40)] == [ADMITTED] * 40
    assert (quotas.gate.is_limited, quotas.samples(now_ms())) == (False, [])


def test_rules_of_addresses_alone_with_finite_rates_are_applied() -> None:
    quotas = address_quotas()
    follow(quotas, ClusterFacts(brokers=(BrokerFacts(1),)))
    rules: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {
        (("ip", None), ("listener", "external")): {RATE: 1.0},
        (("ip", "192.0.2.1"),): {RATE: math.inf},
        (("user", "a"),): {RATE: 1.0},
    }
    quotas.follow_rules(rules)
    assert not quotas.gate.is_limited
    quotas.follow_rules({(("ip", None),): {RATE: 1.0}})
    assert quotas.gate.is_limited


def test_cluster_limits_rates_at_brokers_that_were_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(10**18, 2 * 10**18, 3_600 * 10**9))  # the wall clock is set, and counts for nothing
    monkeypatch.setattr("headroom.clock._TIME_NS", hours.__next__)
    quotas = address_quotas()
    quotas.follow_rules({(("ip", None),): {RATE: 1.0}})
    assert quotas.gate.is_limited
    assert [quotas.connect("192.0.2.1", 7) == ADMITTED for _ in range(12)] == [True] * 10 + [False] * 2


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The address of each name that can be resolved."""
    addresses: dict[str, str] = {}

    async def getaddrinfo(_loop: object, host: str, _port: object, **_: object) -> Sequence[Any]:
        if host not in addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[host], 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return addresses


def test_host_names_are_resolved_beside_the_loop_and_a_failure_is_tried_again(hosts: dict[str, str]) -> None:
    configs = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "app.example:2,192.0.2.9:1"}
    facts = ClusterFacts(brokers=(BrokerFacts(1, configs=configs),))
    quotas = address_quotas()
    follow(quotas, facts)
    assert quotas.connect("192.0.2.1", 1) != ADMITTED
    assert quotas.connect("192.0.2.9", 1) == ADMITTED
    hosts["app.example"] = "192.0.2.1"
    follow(quotas, facts)
    assert quotas.connect("192.0.2.1", 1) == ADMITTED
    del hosts["app.example"]
    follow(quotas, facts)  # as Kafka, which asks once
    assert quotas.connect("192.0.2.1", 1) == ADMITTED


def test_quota_of_a_host_name_holds_for_its_address(hosts: dict[str, str]) -> None:
    hosts["app.example"] = "192.0.2.1"
    quotas = address_quotas()
    quotas.follow_rules({(("ip", "app.example"),): {RATE: 1.0}})
    follow(quotas, ClusterFacts(brokers=(BrokerFacts(1),)))
    assert [quotas.connect("192.0.2.1", 1) == ADMITTED for _ in range(12)] == [True] * 10 + [False] * 2
    assert quotas.connect("192.0.2.2", 1) == ADMITTED
