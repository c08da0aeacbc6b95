"""`headroom gateway check`: checks the prerequisites of a gateway before clients use it, and what changes for a cluster
when a gateway is in the path. Brokers see the gateway's address instead of the clients'.

`headroom gateway share`: the share of the brokers' traffic that passes the gateways.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import typer

from exporters.findings import Finding
from exporters.identity import normal_address
from exporters.listening_socket import listening_socket
from exporters.printable import shortened
from exporters.text_table import Layout
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.options import HTTP, HttpAddress
from headroom.cli.output.tables import print_table
from headroom.cli.serve_api import ask
from headroom.clock import now_ms
from headroom.config.types import parse_address
from headroom.errors import ArgumentError
from quota_metrics.amounts import rate_text, share_text
from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.cluster.reading import read_facts
from quota_metrics.kafka.admin import KafkaAdmin, metadata_request
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.cluster import Cluster
from quota_metrics.kafka.errors import ClusterError, RefusedError, UnsupportedError, check
from quota_metrics.kafka.frames import NegotiatedRequest
from quota_metrics.measure.connection_quotas import NO_LIMIT, address_limits
from telemetry.gateway.broker_ports import BrokerNames, BrokerNamesError

app = typer.Typer(help="The gateway in front of a cluster.", no_args_is_help=True)

_CLUSTER_AUTHORIZATION_FAILED = 31
_DESCRIBE_QUORUM = 55
_MAX_SKEW_MS = 2_000
_CONNECT_S = 5.0
_GRANT = "kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:HEADROOM --cluster --operation "
_CONFIGS: Final = "kafka-configs.sh --bootstrap-server HOST:PORT --alter "
_OVERRIDES: Final = "max.connections.per.ip.overrides"
_OUTAGE: Final = (
    "clients before Java 4.0 wait for this gateway while it is down; a name with the addresses of several gateways, or"
    " a load balancer, takes them to another one (docs/gateway.md)"
)


class PlannedListener(NamedTuple):
    """A gateway's listener as it is planned: its address, and the names and ports that clients are sent to."""

    host: str
    port: int
    advertised_host: str | None = None
    names: BrokerNames | None = None
    advertised_port: int | None = None


@app.command("check")
def check_command(
    upstream: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="Brokers, as for `headroom serve`.")],
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The gateway's listener: are its ports free?")
    ] = None,
    advertised_host: Annotated[str | None, typer.Option(metavar="HOST", help="As gateway.advertised_host.")] = None,
    broker_names: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="As listener.broker_names: broker-{id}.gateway.example[:PORT]."),
    ] = None,
    advertised_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="As listener.advertised_port.", min=1, max=65_535)
    ] = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = 10_000,
) -> None:
    """Check brokers, names, ports and rights. Exit 1 when a check fails, 2 for invalid arguments."""
    with reported_in_one_line():
        listener = None
        if listen is None and (advertised_host or advertised_port or broker_names):
            raise ArgumentError("--advertised-host, --advertised-port and --broker-names need --listen")
        if listen is not None:
            try:
                parsed: Any = parse_address(listen)
                names = BrokerNames(broker_names) if broker_names else None
            except BrokerNamesError as exc:
                raise ArgumentError(f"--broker-names {exc}") from exc
            except ValueError as exc:
                raise ArgumentError(f"--listen {exc}") from exc
            listener = PlannedListener(parsed["host"], parsed["port"], advertised_host, names, advertised_port)
        findings = asked(lambda admin: _findings(admin, listener), upstream, command_config, timeout_ms)
    for finding in findings:
        typer.echo("\n".join(finding.lines()))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command("share")
def share_command(
    http: HttpAddress = HTTP,
    cluster: Annotated[str, typer.Option(help="Of this cluster only.")] = "",
    user: Annotated[str, typer.Option(help="Of this user only.")] = "",
    client_id: Annotated[str, typer.Option(help="This client id only.")] = "",
) -> None:
    """How much of what the brokers' JMX meters passes the gateways. Exit 1: `headroom serve` does not answer."""
    headings = ("client", "user", "quota", "seen", "brokers", "gateways", "bypassing", "broker")
    with reported_in_one_line():
        rows = ask(http, "/api/v1/gateway-share", {"cluster": cluster, "user": user, "client_id": client_id})
    if not rows:
        typer.echo("nothing to compare: no broker's JMX is read (quotas.jmx.targets), or no client is active")
        return
    cells = [
        (
            shortened(row["client_id"]) or "(all)",
            shortened(row["user"]) or "(all)",
            row["quota_key"],
            share_text(row["share"]),
            *(rate_text(row[name], row["quota_key"]) for name in ("broker_rate", "gateway_rate", "bypassing_rate")),
            str(row["broker_id"]),
        )
        for row in rows
    ]
    print_table(headings, cells, Layout(numbers=headings[3:], names=headings[:2], leave=("broker", "user", "quota")))


async def _findings(admin: KafkaAdmin, listener: PlannedListener | None) -> list[Finding]:
    """Raises ClusterError when no broker answers at all."""
    cluster = await admin.describe_cluster()
    findings = [Finding(True, f"cluster {cluster.cluster_id}: {len(cluster.nodes)} brokers")]
    # Each address of --upstream: one that works hides that another does not.
    refusals = await asyncio.gather(*map(admin.refused_by, admin.bootstrap))
    for (host, port), refusal in zip(admin.bootstrap, refusals, strict=True):
        findings.append(Finding(not refusal, f"{host}:{port}, of --upstream, answers", refusal))
    seen_as: dict[int, str] = {}  # by broker, the address from which this host connects to it
    for node in cluster.nodes:
        what = f"broker {node.id}: its advertised name {node.host} resolves here"
        findings.append(await _resolves(node.host, what, "the gateway connects to the broker's advertised address"))
        what = f"broker {node.id} answers at {node.host}:{node.port}"
        try:
            await admin.send(metadata_request(()), node_id=node.id)
            findings.append(Finding(True, what))
        except ClusterError as exc:
            findings.append(Finding(False, what, str(exc)))
        with suppress(OSError, TimeoutError, UnicodeError):
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(node.host, node.port)
            seen_as[node.id] = str(writer.get_extra_info("sockname")[0])
            writer.close()
    findings.append(await _right("client quotas can be read", admin.describe_client_quotas, "DescribeConfigs"))
    findings.append(
        await _right("client metrics subscriptions can be read", lambda: read_subscriptions(admin), "DescribeConfigs")
    )
    findings.append(await _right("the cluster's clock can be read", partial(_clock_skew_ms, admin), "Describe"))
    if findings[-1].ok and not findings[-1].is_note:
        skew_ms = await _clock_skew_ms(admin)
        what = f"the controller's clock and ours agree within {_MAX_SKEW_MS / 1000:.0f} s"
        advice = (
            f"it is {abs(skew_ms) / 1000:.1f} s {'ahead' if skew_ms > 0 else 'behind'}: rows of usage and telemetry"
            " would not lie beside each other"
        )
        findings.append(Finding(abs(skew_ms) <= _MAX_SKEW_MS, what, advice))
    findings += mechanism_findings(await admin.offered_mechanisms())
    findings += fact_findings(await read_facts(admin), seen_as)
    return findings if listener is None else findings + await _listener_findings(listener, cluster)


async def _listener_findings(listener: PlannedListener, cluster: Cluster) -> list[Finding]:
    findings: list[Finding] = []
    host = listener.advertised_host
    if host:
        with suppress(OSError, UnicodeError):  # a name that does not resolve has its own finding
            infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            findings += single_address(host, [str(address[0]) for *_, address in infos])
    elif listener.names is None:
        findings += single_address(None, ())
    names = {host: "the advertised host"} if host else {}
    ports = {listener.port: "clients bootstrap from"}
    for node in cluster.nodes:
        if listener.names is None:
            ports[listener.port + 1 + node.id] = f"stands for broker {node.id}"
        else:
            name, _ = listener.names.address_of(node.id, listener.port)
            names[name] = f"broker {node.id}'s name at the gateway"
    for name, purpose in names.items():
        what = f"{name}, {purpose}, resolves here"
        findings.append(await _resolves(name, what, "clients are sent to this name, and have to resolve it as well"))
    for number, purpose in ports.items():
        what = f"port {number}, which {purpose}, is free on {listener.host}"
        try:
            with listening_socket(listener.host, number):
                findings.append(Finding(True, what))
        except (OSError, OverflowError) as exc:
            findings.append(Finding(False, what, str(exc)))
    if listener.advertised_port is None:
        return findings
    # Which of a load balancer's ports have to lead to ours. Only somebody outside can see whether they do.
    for number in ports:
        advertised = listener.advertised_port + number - listener.port
        what = f"clients are sent to port {advertised}, which has to lead to port {number} of {listener.host}"
        if advertised > 65_535:
            findings.append(Finding(False, what, "the highest port is 65535: choose a lower --advertised-port"))
        else:
            findings.append(Finding(True, what, is_note=True))
    return findings


async def _resolves(host: str, what: str, advice: str) -> Finding:
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        return Finding(False, what, f"{exc}: {advice}")
    return Finding(True, what)


async def _right(what: str, ask: Callable[[], Awaitable[object]], operation: str) -> Finding:
    try:
        await ask()
    except RefusedError as exc:
        grant = f"; grant it: {_GRANT}{operation}" if exc.code == _CLUSTER_AUTHORIZATION_FAILED else ""
        return Finding(False, what, f"{exc}{grant}")
    except UnsupportedError as exc:
        return Finding(True, f"not with these brokers: {what}", str(exc), is_note=True)
    except ClusterError as exc:
        return Finding(False, what, str(exc))
    return Finding(True, what)


async def _clock_skew_ms(admin: KafkaAdmin) -> float:
    """How far the active controller's clock is ahead of ours: DescribeQuorum gives the leader's time (KIP-836).

    The round trip counts for it, as far as it takes longer one way. Raises ClusterError.
    """
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    began_ms = now_ms()
    response = await admin.send(NegotiatedRequest(_DESCRIBE_QUORUM, {"topics": [topic]}, least=1))
    middle_ms = (began_ms + now_ms()) / 2
    check("DescribeQuorum", response.error_code, None)
    for partition in (partition for topic in response.topics for partition in topic.partitions):
        check("DescribeQuorum", partition.error_code, None)
        for voter in partition.current_voters:
            if voter.replica_id == partition.leader_id and voter.last_caught_up_timestamp > 0:
                return float(voter.last_caught_up_timestamp - middle_ms)
    raise ClusterError("DescribeQuorum does not tell the leader's time")


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
