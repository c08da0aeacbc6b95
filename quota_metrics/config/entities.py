"""Quota entities, filters and alterations, named as in KIP-546. Sans-I/O."""

import math
import shlex
from collections.abc import Iterable, Mapping
from enum import IntEnum
from ipaddress import IPv4Address
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from exporters.identity import parsed_address, stored_name
from exporters.model import DEFAULT_ENTITY, QuotaKey

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)
_CONNECTION_CREATION_RATE = QuotaKey.CONNECTION_CREATION_RATE.value
_TOOLS_TYPES = {"user": "users", "client-id": "clients", "ip": "ips"}
_LONGEST_IPV4 = 15  # characters
PRINCIPAL_TYPE = "User:"  # before names in ACLs, and never in quotas, which a broker looks up by the name alone

# (type, name) of each dimension of the entity; the name None is the type's default entity. In the order of TYPES, so
# that equal entities are equal tuples. An empty string is a valid name.
Entity: TypeAlias = tuple[tuple[str, str | None], ...]
Values: TypeAlias = Mapping[str, float]  # quota key -> value
Rules: TypeAlias = Mapping[Entity, Values]


def entity_of(components: Mapping[str, str | None]) -> Entity:
    """The entity of {type: name}, in canonical order; unknown types come last."""
    return tuple(
        sorted(components.items(), key=lambda part: (TYPES.index(part[0]) if part[0] in TYPES else len(TYPES), part[0]))
    )


def entity_of_names(user: str, client_id: str, ip: str = "") -> Entity:
    """The entity of a row of quota_limits: '' is no part of it, DEFAULT_ENTITY its default."""
    names = {USER: user, CLIENT_ID: client_id, IP: ip}
    return entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})


def is_kafkas(entity: Entity) -> bool:
    """Whether Apache Kafka has quotas of such an entity; other vendors have further types (`client-id-prefix`)."""
    kinds = {kind for kind, _ in entity}
    return kinds == {IP} or (bool(kinds) and kinds <= {USER, CLIENT_ID})


def stored_rules(rules: Rules) -> Rules:
    """The rules with names as usage is stored, so that the rule of a very long client-id applies to its usage.

    A limit below 0, which brokers with ZooKeeper accept, is 0: any usage exceeds either.
    """
    return {
        tuple((kind, name and stored_name(name)) for kind, name in entity): {
            key: 0.0 if value < 0.0 else value for key, value in values.items()
        }
        for entity, values in rules.items()
    }


def address_rates(rules: Rules) -> dict[str | None, float]:
    """connection_creation_rate of each address; None is the default. Entities that name anything else are not Kafka's,
    and limits that are not finite do not limit."""
    rates = {
        entity[0][1]: values.get(_CONNECTION_CREATION_RATE, math.nan)
        for entity, values in rules.items()
        if len(entity) == 1 and entity[0][0] == IP
    }
    return {ip: rate for ip, rate in rates.items() if math.isfinite(rate)}


def literal_address(name: str) -> str | None:
    """The address that the name of an ip entity is, as java.net.InetAddress reads it: IPv4 also in its short forms, all
    numbers decimal. None: a host name, which a broker looks up."""
    parts = name.split(".")
    if len(name) <= _LONGEST_IPV4 and len(parts) <= 4 and all(part.isascii() and part.isdigit() for part in parts):
        *leading, rest = map(int, parts)
        if max(leading, default=0) > 255 or rest >= 256 ** (4 - len(leading)):
            return None
        return str(IPv4Address(rest + sum(number << 8 * (3 - place) for place, number in enumerate(leading))))
    try:
        return str(parsed_address(name))
    except ValueError:
        return None


def text(entity: Entity) -> str:
    """An entity in the format of KIP-546's tool, with sanitized names: `{user=a%20b, client-id=<default>}`."""
    parts = (f"{kind}={DEFAULT_ENTITY if name is None else sanitize(name)}" for kind, name in entity)
    return "{" + ", ".join(parts) + "}"


def entity_text(entity: Entity) -> str:
    """`user=alice, client-id=<default>`: the form of entities in quota_usage and quota_utilization."""
    return ", ".join(f"{kind}={DEFAULT_ENTITY if name is None else name}" for kind, name in entity)


def kafka_configs_line(entity: Entity, quota_key: str, value: float | None) -> str:
    """The kafka-configs.sh line that alters a quota of an entity of Kafka's kinds, quoted for a POSIX shell. `value`
    None removes it."""
    names = " ".join(
        f"--entity-type {_TOOLS_TYPES[kind]} "
        + ("--entity-default" if name is None else f"--entity-name {shlex.quote(name)}")
        for kind, name in entity
    )
    change = f"--delete-config {quota_key}"
    if value is not None:
        # A fraction, as of a percentage, is not rounded.
        change = f"--add-config {quota_key}={f'{value:.0f}' if value.is_integer() else repr(value)}"
    return f"kafka-configs.sh --bootstrap-server HOST:PORT --alter {names} {change}"


def misread_names(entities: Iterable[Entity]) -> list[str]:
    """A line for each kind of name that other tools mean otherwise: principals of ACLs, words for the default."""
    misread: dict[str, list[str]] = {}
    for kind, name in sorted({(kind, name) for entity in entities for kind, name in entity if name}):
        if kind == USER and name.startswith(PRINCIPAL_TYPE):
            right = f"but quotas have users without their type: write {name.removeprefix(PRINCIPAL_TYPE)!r}"
            misread.setdefault(PRINCIPAL_TYPE, [right]).append(f"user {name!r}")
        elif name in ("*", "default", DEFAULT_ENTITY):
            right = f"but the default is {DEFAULT_ENTITY} in YAML, null in JSON, --defaults {kind} among flags"
            misread.setdefault(kind, [right]).append(f"{kind} {name!r}")
    return [
        f"{names[0]}{f' (and {len(names) - 1} more)' if names[1:] else ''} is taken literally, {right}"
        for right, *names in misread.values()
    ]


def sanitize(name: str) -> str:
    """Kafka's spelling of a user in metric tags (org.apache.kafka.common.utils.Sanitizer): percent-encoded UTF-8."""
    if name.isascii() and name.isalnum():
        return name
    return quote(name, safe="", errors="replace").replace("~", "%7E")


def desanitize(sanitized: str) -> str:
    return unquote(sanitized)


class MatchType(IntEnum):
    """How a component of a filter matches (DescribeClientQuotasRequest.json)."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2  # "specified": any name, and the default


class FilterComponent(NamedTuple):
    """One dimension of a filter; `name` only with EXACT. Components of a filter must all match."""

    entity_type: str
    match_type: MatchType
    name: str | None = None


class QuotaAlteration(NamedTuple):
    """A change of one entity: quota key -> new value, or None to remove it."""

    entity: Entity
    values: Mapping[str, float | None]


class Altered(NamedTuple):
    """The result of one alteration; error_code 0 is success."""

    entity: Entity
    error_code: int
    error_message: str | None


def matches(entity: Entity, components: Iterable[FilterComponent], *, strict: bool) -> bool:
    """Whether the entity matches the filter, by the broker's rule (ClientQuotasImage.describe).

    Strict: the entity must not have a type that the filter does not name. An empty filter matches everything, or
    nothing when strict.
    """
    names, wanted = dict(entity), list(components)
    for component in wanted:
        if component.entity_type not in names:
            return False
        if component.match_type != MatchType.ANY and names[component.entity_type] != component.name:
            return False
    return not strict or len(wanted) == len(names)
