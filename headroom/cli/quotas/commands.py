"""`headroom quotas describe | resolve | alter`: KIP-546's command, on a cluster or on a file of quotas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from exporters.model import DEFAULT_ENTITY
from exporters.printable import json_text
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line, utf8
from headroom.cli.options import Output, warn
from headroom.cli.output import quotas as quota_output
from headroom.cli.quotas.cluster_state import ClusterState
from headroom.errors import ArgumentError
from quota_metrics.cluster.reading import read_callback_classes
from quota_metrics.config.broker_refusals import INVALID_REQUEST, altered, refusal
from quota_metrics.config.entities import (
    CLIENT_ID,
    IP,
    TYPES,
    USER,
    Entity,
    FilterComponent,
    MatchType,
    QuotaAlteration,
    Rules,
    entity_of,
    matches,
    misread_names,
    text,
)
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
        flags = who(names, defaults, any_name, user=user, client_id=client_id, ip=ip)
        state = rules_of(bootstrap_server, from_file, command_config, timeout_ms, flags.components(), strict=strict)
        warn(*misread_names([*state.rules, tuple(flags.names.items())]))
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
        clients: list[quota_output.Client] = [(flags.names.get(USER), flags.names.get(CLIENT_ID), flags.names.get(IP))]
        if pairs is not None:
            clients = parse_pairs(content_of(pairs))
        state = rules_of(bootstrap_server, from_file, command_config, timeout_ms)
        warn(*misread_names([*state.rules, *(tuple(zip(TYPES, client, strict=True)) for client in clients)]))
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
            message = refusal(alteration)
            check(f"the change of {text(entity)}", INVALID_REQUEST if message else 0, message)
            _print_rules(state.rules if validate_only else altered(state.rules, alteration), output)
            return
        change = partial(KafkaAdmin.alter_client_quotas, alterations=[alteration], validate_only=validate_only)
        for result in asked(change, _one_of(bootstrap_server, from_file), command_config, timeout_ms):
            check(f"the change of {text(result.entity)}", result.error_code, result.error_message)


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
    warn(*(f"left out: {fault}" for fault in read.faults), *read.ignored)
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


@dataclass(frozen=True, slots=True)
class Who:
    """Types with a name (None: the default), and types with any name."""

    names: dict[str, str | None]
    any_name: list[str] = field(default_factory=list)

    def components(self) -> list[FilterComponent]:
        return [
            FilterComponent(kind, MatchType.DEFAULT if name is None else MatchType.EXACT, name)
            for kind, name in self.names.items()
        ] + [FilterComponent(kind, MatchType.ANY) for kind in self.any_name]

    def entity(self) -> Entity:
        """As the entity to change. Raises ArgumentError when no entity is named."""
        if not self.names:
            raise ArgumentError("name an entity: --names, --defaults, --user, --client-id or --ip")
        entity = entity_of(self.names)
        warn(*misread_names([entity]))
        return entity


def who(
    names: Sequence[str] | None,
    defaults: Sequence[str] | None,
    any_name: Sequence[str] | None,
    *,
    user: str | None,
    client_id: str | None,
    ip: str | None,
) -> Who:
    """Combines all flags that name entities. Raises ArgumentError for unknown and repeated types."""
    said: list[tuple[str, str | None]] = []
    for part in _parts(names):
        kind, equals, name = part.partition("=")
        if not equals:
            raise ArgumentError(f"--names {part!r} is not TYPE=NAME")
        said.append((_type(kind, part), utf8(name)))
    said += [(_type(part, part), None) for part in _parts(defaults)]
    flags = {USER: user, CLIENT_ID: client_id, IP: ip}
    said += [(kind, utf8(name)) for kind, name in flags.items() if name is not None]
    any_types = [_type(part, part) for part in _parts(any_name)]
    kinds = [kind for kind, _ in said] + any_types
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ArgumentError(f"{kind} is given more than once")
    return Who(dict(said), any_types)


def changes(add: Sequence[str] | None, delete: Sequence[str] | None) -> dict[str, float | None]:
    """Quota key -> its new value, None to remove it. Raises ArgumentError."""
    values: dict[str, float | None] = {}
    for part in _parts(add):
        key, equals, number = part.partition("=")
        if not equals or not key:
            raise ArgumentError(f"--add {part!r} is not KEY=VALUE")
        _once(key, values)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if math.isnan(value):  # a broker would accept it and never throttle
            raise ArgumentError(f"--add {part!r}: {number!r} is not a number")
        values[key] = value
    for key in _parts(delete):
        _once(key, values)
        values[key] = None
    if not values:
        raise ArgumentError("say what to change: --add KEY=VALUE,... or --delete KEY,...")
    return values


def _parts(flags: Sequence[str] | None) -> list[str]:
    return [part.strip() for flag in flags or () for part in flag.split(",") if part.strip()]


def _type(kind: str, part: str) -> str:
    if kind not in TYPES:
        raise ArgumentError(
            f"unknown entity type in {part!r}, not one of {', '.join(TYPES)}; a name with a comma goes with --user"
        )
    return kind


def _once(key: str, values: dict[str, float | None]) -> None:
    if key in values:
        raise ArgumentError(f"{key} is given more than once")
