"""What `headroom gateway check` finds of a cluster's facts: what changes for a cluster when a gateway is in the path.

Sans-I/O. Brokers see the gateway's address instead of the clients', so quotas on addresses need an exception for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from exporters.identity import normal_address
from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.measure.connection_quotas import NO_LIMIT, address_limits

_CONFIGS: Final = "kafka-configs.sh --bootstrap-server HOST:PORT --alter "
_OVERRIDES: Final = "max.connections.per.ip.overrides"
_OUTAGE: Final = (
    "clients before Java 4.0 wait for this gateway while it is down; a name with the addresses of several gateways, or"
    " a load balancer, takes them to another one (docs/gateway.md)"
)


class Finding(NamedTuple):
    """The result of one check; `advice` says what to do when it is not `ok`, or what to know of a note."""

    ok: bool
    what: str
    advice: str = ""
    is_note: bool = False


def fact_findings(facts: ClusterFacts, seen_as: Mapping[int, str]) -> Iterator[Finding]:
    """`seen_as`: by broker, the address from which the gateway connects to it."""
    yield from _address_findings(facts, seen_as)
    for acl in facts.host_acls:
        rule = f"{acl.permission} {acl.principal} from {acl.host} {acl.operation} {acl.resource}"
        advice = (
            "brokers compare the host with the gateway's address, so the ACL no longer holds for clients behind it: use"
            " principals instead, or keep these clients at the brokers (docs/security.md)"
        )
        yield Finding(True, f"an ACL names the address of a client: {rule}", advice, is_note=True)
    for remark in facts.remarks():
        if "ACLs name addresses" not in remark and "count the gateway" not in remark:
            yield Finding(True, remark, is_note=True)


def _address_findings(facts: ClusterFacts, seen_as: Mapping[int, str]) -> Iterator[Finding]:
    rates = {quota.ip: quota.rate for quota in facts.address_quotas}
    wanted: dict[str, set[str]] = {}
    for broker in facts.brokers:
        own = normal_address(seen_as.get(broker.broker_id, ""))
        limits = address_limits(broker.configs, rates)
        if not own:
            continue
        if limits.rate < NO_LIMIT and limits.rate_at(own) <= limits.rate:
            yield Finding(
                False,
                f"broker {broker.broker_id} lets the gateway's address {own} connect more often than"
                f" {limits.rate_at(own):g} times a second (connection_creation_rate)",
                f"{_CONFIGS}--entity-type ips --entity-name {own} --add-config connection_creation_rate={NO_LIMIT}",
            )
        if limits.most < NO_LIMIT and limits.most_at(own) <= limits.most:
            before = broker.configs.get(_OVERRIDES, "")
            wanted.setdefault(before, set()).add(own)
            value = ",".join([*filter(None, [before]), *(f"{name}:{NO_LIMIT}" for name in sorted(wanted[before]))])
            yield Finding(
                False,
                f"broker {broker.broker_id} lets the gateway's address {own} have more than {limits.most_at(own)}"
                " connections (max.connections.per.ip)",
                f"{_CONFIGS}--entity-type brokers --entity-default --add-config {_OVERRIDES}=[{value}]",
            )


def mechanism_findings(offered: Sequence[str]) -> Iterator[Finding]:
    """Of the SASL mechanisms at the brokers' listener, those whose clients name the host that they connect to: behind a
    gateway that is the gateway's."""
    if "AWS_MSK_IAM" in offered:
        others = [name for name in offered if name != "AWS_MSK_IAM"]
        yield Finding(
            bool(others),
            "the brokers offer AWS_MSK_IAM, which cannot pass a gateway: its clients sign the name of the host",
            "clients use OAUTHBEARER with AWS's signer or login handler, which sign the region's endpoint instead, or"
            " SCRAM at its own port (docs/managed-clusters.md)",
            is_note=bool(others),
        )
    if "GSSAPI" in offered:
        yield Finding(
            True,
            "the brokers offer GSSAPI, whose clients ask for a ticket of the host that they connect to",
            "the brokers' keytab needs the gateway's name as well (docs/security.md)",
            is_note=True,
        )


def single_address(host: str | None, addresses: Sequence[str]) -> Iterator[Finding]:
    """A note when what is advertised leads to one gateway only. `host`: None when no name is advertised."""
    if host is None:
        yield Finding(True, "no --advertised-host: the gateway advertises its own address", _OUTAGE, is_note=True)
    elif len(set(addresses)) == 1:
        yield Finding(True, f"{host} has a single address", _OUTAGE, is_note=True)
