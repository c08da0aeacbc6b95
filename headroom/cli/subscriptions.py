"""`headroom subscriptions list | describe | alter | delete` (like kafka-client-metrics.sh) and `preview`."""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from exporters.printable import json_text, printable
from exporters.text_table import Layout
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, clickhouse_of, reported_in_one_line, utf8
from headroom.cli.options import URL, Output, Url
from headroom.clock import now_ms
from headroom.errors import ArgumentError
from headroom.subscription_preview import Preview
from quota_metrics.kafka.client_metrics import alter_subscription, read_subscriptions, subscription_names
from spark_jobs.time_range import parse_duration
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription import (
    EXTRA_MATCH_KEYS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    described,
    parse_subscription,
)
from telemetry.subscriptions.subscription_file import SubscriptionFile

app = typer.Typer(help="Telemetry subscriptions: which metrics clients are asked for, how often.", no_args_is_help=True)

BootstrapServer = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Brokers, gateway or sink, separated by commas.")
]
HERE = "127.0.0.1:9092"  # where `headroom serve` listens
Name = Annotated[str | None, typer.Option(help="Name of the subscription.")]
# Several of --metrics and --match are one list, as of kafka-client-metrics.sh.
Metrics = Annotated[
    list[str] | None, typer.Option(metavar="PREFIX,...", help="Prefixes of metric names, * for all; '' removes it.")
]
Interval = Annotated[str | None, typer.Option(metavar="MS", help="Push interval in ms, 100 to 3600000; '' removes it.")]
MatchBy = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="KEY=REGEX,...",
        help="Which clients: client_instance_id, client_id, client_software_name, client_software_version,"
        " client_source_address, client_source_port; '' removes it.",
    ),
]
_HEADINGS = ("client id", "principal", "software", "address", "cluster", "points per push")
_LAYOUT = Layout(
    numbers=_HEADINGS[-1:], names=("client id", "principal", "software"), leave=("cluster", "address", "software")
)
OutputForm = Annotated[Literal[Output.TEXT, Output.JSON], typer.Option(help="Text, or JSON.")]


@app.command("list")
def list_(
    bootstrap_server: BootstrapServer = HERE,
    command_config: CommandConfig = None,
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Names of all subscriptions."""
    with reported_in_one_line():
        names = asked(subscription_names, bootstrap_server, command_config, timeout_ms)
        if output is Output.JSON:
            typer.echo(json_text(names))
            return
        for name in names:
            typer.echo(printable(name))


@app.command()
def describe(
    bootstrap_server: BootstrapServer = HERE,
    command_config: CommandConfig = None,
    name: Name = None,
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show subscriptions with all their keys. Without --name: all subscriptions."""
    with reported_in_one_line():
        resources = asked(read_subscriptions, bootstrap_server, command_config, timeout_ms)
        if name is not None:
            resources = {name: _existing(resources, name)}
        if output is Output.JSON:
            typer.echo(json_text({name: described(values) for name, values in resources.items()}))
            return
        for resource, values in resources.items():
            typer.echo(f"Client metrics configs for {printable(resource)} are:")
            for key, value in described(values).items():
                typer.echo(f"  {key}={printable(value)}")


@app.command()
def alter(
    bootstrap_server: BootstrapServer = HERE,
    command_config: CommandConfig = None,
    name: Name = None,
    generate_name: Annotated[bool, typer.Option("--generate-name", help="Draw a random name.")] = False,
    metrics: Metrics = None,
    interval: Interval = None,
    match: MatchBy = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the file of the setting `subscriptions` instead.", dir_okay=False),
    ] = None,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Set keys of a subscription; creates it if needed. Clusters before Kafka 3.7 have none: use --file."""
    with reported_in_one_line():
        if (name is None) != generate_name:
            raise ArgumentError("give one of --name and --generate-name")
        chosen = _drawn_name() if name is None else utf8(name)
        keys = {key: value or None for key, value in _given(metrics, interval, match).items()}
        if file is None:
            alteration = partial(alter_subscription, name=chosen, keys=keys)
            asked(alteration, bootstrap_server, command_config, timeout_ms)
        else:
            _alter_file(file, chosen, keys)
        typer.echo(f"Altered client metrics config for {printable(chosen)}.")


@app.command()
def delete(
    name: Annotated[str, typer.Option(help="Name of the subscription.")],
    bootstrap_server: BootstrapServer = HERE,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Delete a subscription."""
    with reported_in_one_line():
        _existing(asked(read_subscriptions, bootstrap_server, command_config, timeout_ms), name)
        alteration = partial(alter_subscription, name=name, keys=dict.fromkeys((METRICS, INTERVAL_MS, MATCH)))
        asked(alteration, bootstrap_server, command_config, timeout_ms)
        typer.echo(f"Deleted client metrics config for {printable(name)}.")


@app.command()
def preview(
    name: Name = None,
    metrics: Metrics = None,
    interval: Interval = None,
    match: MatchBy = None,
    bootstrap_server: BootstrapServer = HERE,
    command_config: CommandConfig = None,
    url: Url = URL,
    since: Annotated[str, typer.Option(metavar="DURATION", help="Clients seen since: 15m, 24h, 7d.")] = "24h",
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show which known clients a subscription would match, and the points per second they would send. Changes nothing.

    With --name: the cluster's subscription, altered by the other options. Without: these options alone, without a
    cluster.

    Known clients are the client instances in the store that were seen in the given time and sent no terminating push.
    A client is estimated by the series that it sent in that time whose names begin with one of the prefixes, one point
    each per interval. One that sent none is estimated by its software, with all metrics: 110 points for Java, 15 for
    librdkafka and clients based on it, 10 for others. A client whose subscription was smaller may send more.
    The store does not record ports and listeners: criteria on them count as matching.
    """
    from headroom.subscription_preview import preview_of

    with reported_in_one_line():
        changes = _given(metrics, interval, match)
        values: dict[str, str] = {}
        if name is not None:
            values |= asked(read_subscriptions, bootstrap_server, command_config, timeout_ms).get(name, {})
        if not values and not changes:
            raise ArgumentError(
                "nothing to preview: give --metrics, --interval, --match, or the --name of a subscription"
            )
        values = {key: value for key, value in {**values, **changes}.items() if value}
        subscription = parse_subscription(name or "preview", values, EXTRA_MATCH_KEYS)
        try:
            since_ms = now_ms() - parse_duration(since) * 1000
        except ValueError as exc:
            raise ArgumentError(f"--since: {exc}") from exc
        counts = preview_of(subscription, clickhouse_of(url), since_ms)
        typer.echo(json_text(counts.document())) if output is Output.JSON else _print_preview(counts, since)


def _print_preview(preview: Preview, since: str) -> None:
    from headroom.cli.output.tables import print_table  # slow to import

    rows = [
        (
            client.client_id,
            client.principal,
            f"{client.software_name} {client.software_version}",
            client.source_address,
            client.cluster,
            f"{'' if client.sent_before else '~'}{client.points}",
        )
        for client in preview.clients
    ]
    if rows:
        print_table(_HEADINGS, rows, _LAYOUT)
    typer.echo(
        f"{preview.matching} of {preview.known} client instances seen in the last {since} match:"
        f" {preview.points_per_second:.1f} points per second at {preview.interval_ms} ms"
    )


def _alter_file(path: Path, name: str, keys: Mapping[str, str | None]) -> None:
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    file = SubscriptionFile(path, rules, now_ms)
    try:
        with suppress(FileNotFoundError):
            file.load()
        with file.alone():
            before = rules.resources.get(name, {})
            values = {key: value for key, value in {**before, **keys}.items() if value}
            parse_subscription(name, values, rules.match_keys)
            file.keep({name: values})
    except OSError as exc:
        raise ArgumentError(f"{path} cannot be written: {exc.strerror or exc}") from exc


def _existing(resources: dict[str, dict[str, str]], name: str) -> dict[str, str]:
    if name not in resources:
        raise ArgumentError(f"there is no client metrics subscription {name!r}")
    return resources[name]


def _given(metrics: list[str] | None, interval: str | None, match: list[str] | None) -> dict[str, str]:
    lists = {METRICS: metrics, INTERVAL_MS: None if interval is None else [interval], MATCH: match}
    return {key: utf8(",".join(values)) for key, values in lists.items() if values}


def _drawn_name() -> str:
    """A random name without a dash, like Kafka's Uuid.randomUuid(): command lines may read a dash as an option."""
    while "-" in (name := uuid_text(uuid.uuid4().bytes)):
        pass
    return name
