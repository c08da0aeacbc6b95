"""headroom/server/processes/address_quotas.py: whose limits hold for which broker."""

from __future__ import annotations

import math

from headroom.server.processes.address_quotas import AddressQuotas
from quota_metrics.cluster.facts import BrokerFacts, ClusterFacts
from quota_metrics.measure.connection_quotas import ADMITTED
from quota_metrics.windows import QuotaWindow

RATE = "connection_creation_rate"
LIMITED = ClusterFacts(brokers=(BrokerFacts(1, configs={"max.connections.per.ip": "1"}), BrokerFacts(2)))


def address_quotas() -> AddressQuotas:
    return AddressQuotas("c", "g", lambda _: QuotaWindow(), enforced=True)


def test_broker_that_is_missing_from_a_reading_keeps_its_limits() -> None:
    quotas = address_quotas()
    quotas.follow_facts(LIMITED)
    quotas.follow_facts(ClusterFacts(brokers=(BrokerFacts(2),)))
    assert quotas.connect("192.0.2.1", 1) == ADMITTED
    assert quotas.connect("192.0.2.1", 1) != ADMITTED
    assert quotas.gate.is_limited
    quotas.follow_facts(ClusterFacts(brokers=(BrokerFacts(1),)))  # the limit was removed
    assert not quotas.gate.is_limited


def test_rules_of_addresses_alone_with_finite_rates_are_applied() -> None:
    quotas = address_quotas()
    quotas.follow_facts(ClusterFacts(brokers=(BrokerFacts(1),)))
    rules: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {
        (("ip", None), ("listener", "external")): {RATE: 1.0},
        (("ip", "192.0.2.1"),): {RATE: math.inf},
        (("user", "a"),): {RATE: 1.0},
    }
    quotas.follow_rules(rules)
    assert not quotas.gate.is_limited
    quotas.follow_rules({(("ip", None),): {RATE: 1.0}})
    assert quotas.gate.is_limited
