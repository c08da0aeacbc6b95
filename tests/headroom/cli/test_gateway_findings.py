"""What `headroom gateway check` says of quotas on addresses, ACLs with hosts and callback classes."""

import pytest

from headroom.cli.gateway import fact_findings, mechanism_findings, single_address
from quota_metrics.cluster.facts import AddressQuota, BrokerFacts, ClusterFacts, HostAcl

OWN = {1: "192.0.2.10"}


def broker(**configs: str) -> BrokerFacts:
    return BrokerFacts(1, configs={name.replace("_", "."): value for name, value in configs.items()})


def test_default_cluster_needs_nothing() -> None:
    unlimited = broker(max_connections_per_ip=str(2**31 - 1), max_connections_per_ip_overrides="")
    assert list(fact_findings(ClusterFacts(brokers=(unlimited,)), OWN)) == []


def test_commands_make_the_exceptions_and_keep_others() -> None:
    limited = broker(max_connections_per_ip="15", max_connections_per_ip_overrides="10.0.0.1:99")
    facts = ClusterFacts(brokers=(limited,), address_quotas=(AddressQuota(None, 2.0),))
    rate, number = (one for one in fact_findings(facts, OWN) if not one.ok)
    assert rate.advice == (
        "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type ips --entity-name 192.0.2.10"
        " --add-config connection_creation_rate=2147483647"
    )
    assert number.advice == (
        "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type brokers --entity-default"
        " --add-config max.connections.per.ip.overrides=[10.0.0.1:99,192.0.2.10:2147483647]"
    )


@pytest.mark.parametrize("seen_as", [{1: "192.0.2.10"}, {1: "::ffff:192.0.2.10"}])
def test_exceptions_that_exist_are_enough(seen_as: dict[int, str]) -> None:
    limited = broker(max_connections_per_ip="15", max_connections_per_ip_overrides="192.0.2.10:5000")
    quotas = (AddressQuota(None, 2.0), AddressQuota("192.0.2.10", 500.0))
    found = fact_findings(ClusterFacts(brokers=(limited,), address_quotas=quotas), seen_as)
    assert [one.what for one in found if not one.ok] == []


def test_mechanisms_that_name_the_host() -> None:
    assert list(mechanism_findings(("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"))) == []
    (iam,) = mechanism_findings(("AWS_MSK_IAM",))
    assert (iam.ok, "sign the name of the host" in iam.what, "OAUTHBEARER" in iam.advice) == (False, True, True)
    beside, kerberos = mechanism_findings(("AWS_MSK_IAM", "OAUTHBEARER", "GSSAPI"))
    assert (beside.ok, beside.is_note, kerberos.is_note, "keytab" in kerberos.advice) == (True, True, True, True)


def test_acls_with_hosts_and_callbacks_are_noted() -> None:
    acl = HostAcl("DENY", "User:alice", "192.0.2.7", "READ", "TOPIC orders*")
    named = BrokerFacts(1, configs={"client.quota.callback.class": "com.example.Quotas"})
    said = [one.what for one in fact_findings(ClusterFacts(brokers=(named,), host_acls=(acl,)), OWN) if one.is_note]
    assert "an ACL names the address of a client: DENY User:alice from 192.0.2.7 READ TOPIC orders*" in said
    assert any("client.quota.callback.class is com.example.Quotas" in one for one in said)


def test_name_of_one_gateway_is_noted() -> None:
    assert [one.what for one in single_address("gateway.example", ["192.0.2.1", "192.0.2.1"])] == [
        "gateway.example has a single address"
    ]
    assert list(single_address("gateway.example", ["192.0.2.1", "192.0.2.2"])) == []
    assert [one.what for one in single_address(None, [])] == [
        "no --advertised-host: the gateway advertises its own address"
    ]
