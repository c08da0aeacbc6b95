"""Quotas and resolutions on standard output: KIP-546's text, tables, JSON."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from exporters.printable import json_text
from exporters.text_table import Layout
from headroom.cli.output.tables import print_table
from quota_metrics.config.entities import Entity, Rules, entity_of, text
from quota_metrics.config.json_file import json_number
from quota_metrics.config.resolution import Resolution, Rule

Client: TypeAlias = tuple[str | None, str | None, str | None]  # user, client-id, ip


class Resolved(NamedTuple):
    """A client, its quotas by key, classes of brokers that decide instead, rules of other vendors that may apply."""

    client: Client
    quotas: Mapping[str, Resolution]
    callback_classes: tuple[str, ...] = ()
    not_understood: Mapping[str, Sequence[Rule]] = {}


def print_rules(rules: Rules) -> None:
    """An entity in braces, its values below it, a blank line between entities."""
    blocks = []
    for entity, values in _in_order(rules):
        blocks.append("".join([f"{text(entity)}\n", *(f"{key}={number(values[key])}\n" for key in sorted(values))]))
    sys.stdout.write("\n".join(blocks))


def print_rules_table(rules: Rules) -> None:
    rows = [(text(entity), key, number(values[key])) for entity, values in _in_order(rules) for key in sorted(values)]
    print_table(("entity", "quota", "value"), rows, Layout(numbers=("value",)))


def print_resolutions(resolved: Iterable[Resolved], *, named: bool) -> None:
    """`key=value {entity}`, followed by the rules it overrides. `named`: print each client above its quotas."""
    for client, quotas, classes, foreign in resolved:
        lines = [text(_client(client))] if named else []
        if not quotas:
            lines.append(_unlimited(client))
        for key, resolution in sorted(quotas.items()):
            lines.append(f"{key}={number(resolution.value)} {text(resolution.entity)}")
            lines += [f"  overrides {_rule(rule)}" for rule in resolution.overridden]
        lines += [f"{key}: not understood, may apply: {_rule(rule)}" for key in foreign for rule in foreign[key]]
        lines += [f"the brokers use {name}, which may ignore these rules" for name in classes]
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_resolutions_table(resolved: Iterable[Resolved]) -> None:
    rows, unlimited = [], []
    for client, quotas, classes, foreign in resolved:
        if not quotas:
            unlimited.append(client)
        for key, resolution in sorted(quotas.items()):
            overridden = "\n".join(map(_rule, resolution.overridden))
            others = [*classes, *(f"{_rule(rule)} (not understood)" for rule in foreign.get(key, ()))]
            rows.append(
                (
                    *(text(_client(client)), key, number(resolution.value), text(resolution.entity), overridden),
                    "\n".join(others) or "-",
                )
            )
    if rows:
        layout = Layout(numbers=("value",), lists=("overrides", "decided by"))
        headings = ("client", "quota", "value", "rule", "overrides", "decided by")
        print_table(headings, rows, layout)
    for client in unlimited:
        sys.stdout.write(f"{_unlimited(client)}\n")


def print_resolutions_json(resolved: Iterable[Resolved]) -> None:
    """A list in the order of the clients, written one by one because it may be long."""
    separator = "[\n"
    for (user, client_id, ip), quotas, classes, foreign in resolved:
        document = {
            "user": user,
            "client_id": client_id,
            "ip": ip,
            "quotas": {
                key: {
                    "value": json_number(resolution.value),
                    "entity": dict(resolution.entity),
                    "metric_tags": resolution.metric_tags,
                    "overridden": _rule_documents(resolution.overridden),
                }
                for key, resolution in quotas.items()
            },
            "callback_classes": classes,
            "not_understood": {key: _rule_documents(rules) for key, rules in foreign.items()},
        }
        sys.stdout.write(separator + json_text(document, 0))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _rule_documents(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    return [{"entity": dict(rule.entity), "value": json_number(rule.value)} for rule in rules]


def number(value: float) -> str:
    """2000000 instead of 2000000.0; 0.1 unchanged."""
    return str(int(value)) if value.is_integer() else repr(value)


def _unlimited(client: Client) -> str:
    return f"no rule applies to {text(_client(client))}: it has no quota"


def _rule(rule: Rule) -> str:
    return f"{number(rule.value)} {text(rule.entity)}"


def _client(client: Client) -> Entity:
    names = zip(("user", "client-id", "ip"), client, strict=True)
    return entity_of({kind: name for kind, name in names if name is not None})


def _in_order(rules: Rules) -> list[tuple[Entity, Mapping[str, float]]]:
    """Sorted by entity, because a cluster lists them unordered."""
    return sorted(rules.items(), key=lambda rule: [(kind, name is not None, name or "") for kind, name in rule[0]])
