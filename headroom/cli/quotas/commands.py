"""`headroom quotas describe | resolve | alter`: KIP-546's command, on a cluster or on a file of quotas."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from exporters.model import DEFAULT_ENTITY
from exporters.printable import json_text
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.options import Output
from headroom.cli.output import quotas as quota_output
from headroom.cli.quotas.arguments import Who, changes, who
from headroom.cli.quotas.cluster_state import ClusterState
from headroom.errors import ArgumentError
from quota_metrics.cluster.reading import read_callback_classes
from quota_metrics.config.broker_refusals import INVALID_REQUEST, altered, refusal
from quota_metrics.config.entities import Entity, FilterComponent, QuotaAlteration, Rules, matches, text
from quota_metrics.config.json_file import document, parse_pairs, parse_rules
from quota_metrics.config.resolution import CLIENT_KEYS, Resolver
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import check

app = typer.Typer(help="Client quotas: show, resolve and change them, simulate changes.", no_args_is_help=True)

BootstrapServer = Annotated[
    str | None, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Brokers, separated by commas.")
]
FromFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="JSON of quotas instead of a cluster.", dir_okay=False)
]
Names = Annotated[
    list[str] | None, typer.Option(metavar="TYPE=NAME,...", help="Entities by name: user=alice,client-id=app.")
]
Defaults = Annotated[list[str] | None, typer.Option(metavar="TYPE,...", help="Default entities: user,client-id.")]
User = Annotated[str | None, typer.Option(help="A user; the name may contain commas.")]
ClientId = Annotated[str | None, typer.Option(help="A client-id.")]
Ip = Annotated[str | None, typer.Option(help="An address.")]
OutputForm = Annotated[
    Literal[Output.TEXT, Output.TABLE, Output.JSON], typer.Option(help="KIP-546's text, a table, or JSON.")
]


@app.command()
def describe(
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    names: Names = None,
    defaults: Defaults = None,
    any_name: Annotated[
        list[str] | None, typer.Option("--any", metavar="TYPE,...", help="Entities that have the type at all.")
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    match: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only entities of which a name contains this.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Only entities without other types than named.")] = False,
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show configured quotas. Without a filter: all. A type that is not mentioned may have any name or be absent."""
    with reported_in_one_line():
        components = who(names, defaults, any_name, user=user, client_id=client_id, ip=ip).components()
        state = rules_of(bootstrap_server, from_file, command_config, timeout_ms, components, strict=strict)
        rules = {
            entity: values
            for entity, values in state.rules.items()
            if any((match or "") in (DEFAULT_ENTITY if name is None else name) for _, name in entity)
        }
        _print_rules(rules, output)
        exit_when_incomplete(state.is_complete)


@app.command()
def resolve(
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    names: Names = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON list of [user, client-id] or [user, client-id, ip].", dir_okay=False),
    ] = None,
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show the quotas that apply to a client: value, the rule that applies, and the rules it overrides.

    Also the class of brokers that decide by one instead (client.quota.callback.class).
    """
    with reported_in_one_line():
        flags = who(names, None, None, user=user, client_id=client_id, ip=ip)
        if (pairs is None) == (flags == Who({})):
            raise ArgumentError("name a client: --user, --client-id, --ip, --names, or --pairs FILE")
        clients = [flags.client()] if pairs is None else parse_pairs(content_of(pairs))
        state = rules_of(bootstrap_server, from_file, command_config, timeout_ms)
        resolver = Resolver(state.rules)
        classes: tuple[str, ...] = ()
        if bootstrap_server is not None:
            classes = asked(read_callback_classes, bootstrap_server, command_config, timeout_ms)
        resolved = (
            quota_output.Resolved(
                client,
                resolver.resolve(*client),
                classes,
                {key: foreign for key in CLIENT_KEYS if (foreign := resolver.not_understood(key, *client[:2]))},
            )
            for client in clients
        )
        match output:
            case Output.JSON:
                quota_output.print_resolutions_json(resolved)
            case Output.TABLE:
                quota_output.print_resolutions_table(resolved)
            case Output.TEXT:
                quota_output.print_resolutions(resolved, named=pairs is not None)
        exit_when_incomplete(state.is_complete)


@app.command()
def alter(
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    names: Names = None,
    defaults: Defaults = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    add: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Quotas to set.")] = None,
    delete: Annotated[list[str] | None, typer.Option(metavar="KEY,...", help="Quotas to remove.")] = None,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Validate only, change nothing.")] = False,
    output: OutputForm = Output.TEXT,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Set and remove quotas of one entity, all or none. Silent on success; with --from, prints the changed quotas."""
    with reported_in_one_line():
        entity = who(names, defaults, None, user=user, client_id=client_id, ip=ip).entity()
        alteration = QuotaAlteration(entity, changes(add, delete))
        if from_file is not None:
            state = rules_of(bootstrap_server, from_file, command_config, timeout_ms)
            exit_when_incomplete(state.is_complete)  # the changed quotas would be written without what was left out
            _check_change(entity, INVALID_REQUEST if (message := refusal(alteration)) else 0, message)
            _print_rules(state.rules if validate_only else altered(state.rules, alteration), output)
            return
        change = partial(KafkaAdmin.alter_client_quotas, alterations=[alteration], validate_only=validate_only)
        for result in asked(change, _one_of(bootstrap_server, from_file), command_config, timeout_ms):
            _check_change(result.entity, result.error_code, result.error_message)


def _check_change(entity: Entity, code: int, message: str | None) -> None:
    check(f"the change of {text(entity)}", code, message)


def _print_rules(rules: Rules, output: Output) -> None:
    match output:
        case Output.JSON:
            typer.echo(json_text(document(rules)))
        case Output.TABLE:
            quota_output.print_rules_table(rules)
        case Output.TEXT:
            quota_output.print_rules(rules)


def rules_of(
    bootstrap_server: str | None,
    from_file: Path | None,
    command_config: Path | None,
    timeout_ms: int,
    components: Iterable[FilterComponent] = (),
    *,
    strict: bool = False,
) -> ClusterState:
    """The quotas of a file or a cluster that match the filter, which a cluster applies itself. What of a file is left
    out is named on standard error."""
    address = _one_of(bootstrap_server, from_file)
    components = list(components)
    if from_file is None:
        describe = partial(KafkaAdmin.describe_client_quotas, components=components, strict=strict)
        return ClusterState(asked(describe, address, command_config, timeout_ms))
    read = parse_rules(content_of(from_file))
    for line in [*(f"left out: {fault}" for fault in read.faults), *read.ignored]:
        typer.echo(f"headroom: {line}", err=True)
    rules = {entity: values for entity, values in read.rules.items() if matches(entity, components, strict=strict)}
    return ClusterState(rules, is_complete=not read.faults)


def exit_when_incomplete(is_complete: bool) -> None:
    """Exits with 2, at the end, when a file was read without its invalid parts."""
    if not is_complete:
        raise typer.Exit(2)


def _one_of(bootstrap_server: str | None, from_file: Path | None) -> str:
    """The cluster's address; empty with a file."""
    if (bootstrap_server is None) == (from_file is None):
        raise ArgumentError("give one of --bootstrap-server HOST:PORT and --from FILE")
    return bootstrap_server or ""


def content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ArgumentError(f"{path} cannot be read: {exc.strerror}") from exc
