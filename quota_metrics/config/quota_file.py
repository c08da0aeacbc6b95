"""Quotas as code: a YAML file with entities, values, owner, comment and expiry. Sans-I/O.

    quotas:
      - entity: {user: alice, client-id: <default>}
        values: {producer_byte_rate: 10 MiB, consumer_byte_rate: 5000000}
        owner: payments
        comment: two instances of the settlement job
        expires: 2027-03-31

`<default>` is the default entity of a type. A value is a number, for byte rates also with a unit (kB, MB, GB, KiB, MiB,
GiB), or null: the value must not exist. From the day `expires` on, none of the entry's values must exist.

    subscriptions:                    # as in the file of the setting `subscriptions`, whose parser reads them
      all: {metrics: "*", interval.ms: 60000}
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import TYPES, Entity, QuotaAlteration, Rules, entity_of, text
from quota_metrics.config.validation import SCRAM_IS_IGNORED, refusal

_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([kMG]i?B|KiB)")
_FIELDS = ("entity", "values", "owner", "comment", "expires")
_BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
SECTIONS = ("quotas", "subscriptions")
_SCRAM_USERS = "scram_users"
MAX_TEXT = 1_000  # characters of an owner or a comment


class DeclaredQuotaError(ValueError):
    """Every error of the file, one per line, each with its line number."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class DeclaredQuota:
    """An entry of the file. A value None must not exist."""

    entity: Entity
    values: Mapping[str, float | None]
    owner: str = ""
    comment: str = ""
    expires: datetime.date | None = None

    def in_force(self, today: datetime.date) -> Mapping[str, float | None]:
        """The values that the cluster must have."""
        return dict.fromkeys(self.values) if self.is_expired(today) else self.values

    def is_expired(self, today: datetime.date) -> bool:
        return self.expires is not None and today >= self.expires


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """A section that the file does not have is None. `subscriptions` are as YAML has them, not yet checked. `ignored`
    has one sentence for each part that is not Headroom's."""

    quotas: list[DeclaredQuota] | None
    subscriptions: Any = None
    ignored: list[str] = field(default_factory=list)


def parse_quota_file(content: str | bytes) -> list[DeclaredQuota]:
    """The quotas of a file. Raises DeclaredQuotaError."""
    return parse_declared_file(content).quotas or []


def parse_declared_file(content: str | bytes) -> DeclaredFile:
    """All sections of a file. Raises DeclaredQuotaError."""
    errors: list[str] = []
    root = _composed(content)
    fields = _fields(root, (*SECTIONS, _SCRAM_USERS), "the file", errors) if root is not None else {}
    users = fields.pop(_SCRAM_USERS, None)
    ignored = [] if users is None else [f"line {_line(users)}: {_SCRAM_USERS}: {SCRAM_IS_IGNORED}"]
    if not fields and not ignored:
        errors.append(f"line {_line(root)}: the file is not a mapping with {', '.join(SECTIONS)}")
        raise DeclaredQuotaError(errors)
    quotas = _quotas(fields["quotas"], errors) if "quotas" in fields else None
    subscriptions = _plain(fields["subscriptions"], errors) if "subscriptions" in fields else None
    if errors:
        raise DeclaredQuotaError(errors)
    return DeclaredFile(quotas, subscriptions, ignored)


def _quotas(entries: yaml.Node, errors: list[str]) -> list[DeclaredQuota]:
    if not isinstance(entries, yaml.SequenceNode):
        errors.append(f"line {_line(entries)}: `quotas` is not a list")
        return []
    declared: dict[Entity, DeclaredQuota] = {}
    for node in entries.value:
        quota = _declared(node, errors)
        if quota is None:
            continue
        if quota.entity in declared:
            errors.append(f"line {_line(node)}: {text(quota.entity)} a second time")
        declared[quota.entity] = quota
    return list(declared.values())


def _plain(node: yaml.Node, errors: list[str]) -> Any:
    """A section without content is an empty mapping; one of another type stays what it is, an error."""
    try:
        found = yaml.SafeLoader("").construct_object(node, deep=True)
        return {} if found is None else found
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        errors.append(f"line {_line(node)}: {getattr(exc, 'problem', None) or exc}")
        return {}


def quota_file(
    quotas: Iterable[DeclaredQuota] | None,
    heading: str = "",
    subscriptions: Mapping[str, Mapping[str, str | None]] | None = None,
) -> str:
    """The YAML that `parse_declared_file` reads. None leaves a section out, which `apply --prune` then does not take as
    nothing to keep."""
    written = list(quotas or ())
    document: dict[str, Any] = {} if quotas is None else {"quotas": [_document(quota) for quota in written]}
    if subscriptions is not None:
        document["subscriptions"] = {name: dict(keys) for name, keys in subscriptions.items()}
    # PyYAML does not escape all line breaks of Unicode unless it escapes everything beyond ASCII.
    names = "".join(name or "" for quota in written for _, name in quota.entity)
    body = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=(names + str(subscriptions or "")).isprintable(), width=120
    )
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body


def writable(rules: Rules) -> tuple[Rules, list[str]]:
    """The rules that a file can hold, and one line for each other one: `<default>` as a name, a type of entity or a key
    of another vendor, a value that Kafka refuses today."""
    held: dict[Entity, dict[str, float]] = {}
    others = []
    for entity, values in rules.items():
        if any(name == DEFAULT_ENTITY for _, name in entity):
            others.append(f"{text(entity)}: in a file the name {DEFAULT_ENTITY} is the default entity")
            continue
        for key, value in values.items():
            if message := refusal(QuotaAlteration(entity, {key: value})):
                others.append(f"{key}={value:g} of {text(entity)}: {message}")
            else:
                held.setdefault(entity, {})[key] = value
    return held, others


def declared_of(rules: Rules, known: Iterable[DeclaredQuota] = ()) -> list[DeclaredQuota]:
    """Writable rules as entries, in the order of their names, with owner, comment and expiry of `known` entries."""
    before = {quota.entity: quota for quota in known}
    ordered = sorted(rules, key=lambda entity: [(TYPES.index(kind), name or "", name is None) for kind, name in entity])
    quotas = []
    for entity in ordered:
        old = before.get(entity, DeclaredQuota(entity, {}))
        quotas.append(DeclaredQuota(entity, dict(sorted(rules[entity].items())), old.owner, old.comment, old.expires))
    return quotas


def _composed(content: str | bytes) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(content, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        said = getattr(exc, "problem", None) or exc
        raise DeclaredQuotaError([f"{where}not YAML: {said}"]) from exc
    return node


def _declared(node: yaml.Node, errors: list[str]) -> DeclaredQuota | None:
    """None after an error."""
    count = len(errors)
    fields = _fields(node, _FIELDS, "the entry", errors)
    if not isinstance(node, yaml.MappingNode):
        return None
    entity = _entity(node, fields.get("entity"), errors)
    values = _values(node, fields.get("values"), errors)
    owner, comment = (_text(name, fields.get(name), errors) for name in ("owner", "comment"))
    expires = _date(fields.get("expires"), errors)
    if entity is not None and values is not None:
        for key, value in values.items():
            if message := refusal(QuotaAlteration(entity, {key: value if value is not None else 1.0})):
                errors.append(f"line {_line(fields['values'])}: {text(entity)}: {message}")
    if len(errors) > count or entity is None or values is None:
        return None
    return DeclaredQuota(entity, values, owner, comment, expires)


def _fields(node: yaml.Node, known: Iterable[str] | None, what: str, errors: list[str]) -> dict[str, yaml.Node]:
    """The fields of a mapping; `known` None: any."""
    if not isinstance(node, yaml.MappingNode):
        errors.append(f"line {_line(node)}: {what} is not a mapping")
        return {}
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or (known is not None and key.value not in known):
            errors.append(f"line {_line(key)}: {what} has no field {getattr(key, 'value', '?')!r}")
        elif key.value in fields:
            errors.append(f"line {_line(key)}: {key.value} a second time")
        else:
            fields[key.value] = value
    return fields


def _entity(entry: yaml.Node, node: yaml.Node | None, errors: list[str]) -> Entity | None:
    if node is None:
        errors.append(f"line {_line(entry)}: the entry has no `entity`")
        return None
    count = len(errors)
    names: dict[str, str | None] = {}
    for kind, name in _fields(node, TYPES, "the entity", errors).items():
        if not isinstance(name, yaml.ScalarNode) or name.tag != "tag:yaml.org,2002:str":
            errors.append(f"line {_line(name)}: the name of {kind} is not text: quote it, or write {DEFAULT_ENTITY}")
            continue
        names[kind] = None if name.value == DEFAULT_ENTITY else name.value
    if len(errors) > count:
        return None
    if not names:
        errors.append(f"line {_line(node)}: the entity names none of {', '.join(TYPES)}")
        return None
    return entity_of(names)


def _values(entry: yaml.Node, node: yaml.Node | None, errors: list[str]) -> dict[str, float | None] | None:
    """Those without errors."""
    if node is None:
        errors.append(f"line {_line(entry)}: the entry has no `values`")
        return None
    fields = _fields(node, None, "`values`", errors)
    if isinstance(node, yaml.MappingNode) and not node.value:
        errors.append(f"line {_line(node)}: `values` is empty")
    values: dict[str, float | None] = {}
    for key, value in fields.items():
        count = len(errors)
        found = _value(key, value, errors)
        if len(errors) == count:
            values[key] = found
    return values


def _value(key: str, node: yaml.Node, errors: list[str]) -> float | None:
    found = _scalar(node)
    if found is None or (isinstance(found, int | float) and not isinstance(found, bool)):
        return None if found is None else float(found)
    amount = _AMOUNT.fullmatch(found) if isinstance(found, str) and key in _BYTE_RATES else None
    if amount is None:
        units = f", with a unit ({', '.join(unit for unit in _UNITS if unit)})" if key in _BYTE_RATES else ""
        errors.append(f"line {_line(node)}: {key} is not a number{units} or null")
        return None
    return float(amount[1]) * _UNITS[amount[2]]


def _text(name: str, node: yaml.Node | None, errors: list[str]) -> str:
    found = "" if node is None else _scalar(node)
    if isinstance(found, str) and len(found) <= MAX_TEXT:
        return found
    errors.append(f"line {_line(node)}: {name} is not text of at most {MAX_TEXT} characters")
    return ""


def _date(node: yaml.Node | None, errors: list[str]) -> datetime.date | None:
    found = None if node is None else _scalar(node)
    if node is None or (isinstance(found, datetime.date) and not isinstance(found, datetime.datetime)):
        return found
    errors.append(f"line {_line(node)}: expires is not a date, as 2027-03-31")
    return None


def _scalar(node: yaml.Node) -> Any:
    """The value of a scalar; a list or a mapping as it is."""
    if not isinstance(node, yaml.ScalarNode):
        return node
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node.value


def _line(node: yaml.Node | None) -> int:
    return 1 if node is None else node.start_mark.line + 1


def _document(quota: DeclaredQuota) -> dict[str, Any]:
    values = {key: _number(value) for key, value in quota.values.items()}
    names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in quota.entity}
    more = {"owner": quota.owner, "comment": quota.comment, "expires": quota.expires}
    return {"entity": names, "values": values, **{name: value for name, value in more.items() if value}}


def _number(value: float | None) -> float | int | None:
    return int(value) if value is not None and value.is_integer() else value
