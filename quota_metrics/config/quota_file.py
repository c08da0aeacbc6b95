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
    scram_users:
      - {user: alice, mechanism: SCRAM-SHA-512, iterations: 8192, password_env: ALICE_PASSWORD}

A password is never in the file. `iterations` null: the credential must not exist.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import TYPES, Entity, QuotaAlteration, Rules, entity_of, text
from quota_metrics.config.validation import refusal

_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([kMG]i?B|KiB)")
_FIELDS = ("entity", "values", "owner", "comment", "expires")
_BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
SECTIONS = ("quotas", "subscriptions", "scram_users")
_SCRAM_FIELDS = ("user", "mechanism", "iterations", "password_file", "password_env")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384  # ScramMechanism and ScramControlManager
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
class DeclaredScramUser:
    """A credential. `iterations` None: it must not exist. The password is in a file or a variable, if it is known."""

    user: str
    mechanism: str
    iterations: int | None = MIN_ITERATIONS
    password_file: str = ""
    password_env: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """None: the file does not have the section. `subscriptions`: as YAML has it, not yet checked."""

    quotas: list[DeclaredQuota] | None
    subscriptions: Any = None
    scram_users: list[DeclaredScramUser] | None = None


def parse_quota_file(content: str | bytes) -> list[DeclaredQuota]:
    """The quotas of a file. Raises DeclaredQuotaError."""
    return parse_declared_file(content).quotas or []


def parse_declared_file(content: str | bytes) -> DeclaredFile:
    """All sections of a file. Raises DeclaredQuotaError."""
    errors: list[str] = []
    root = _composed(content)
    fields = _fields(root, SECTIONS, "the file", errors) if root is not None else {}
    if not fields:
        errors.append(f"line {_line(root)}: the file is not a mapping with {', '.join(SECTIONS)}")
        raise DeclaredQuotaError(errors)
    quotas = _quotas(fields["quotas"], errors) if "quotas" in fields else None
    users = _scram_users(fields["scram_users"], errors) if "scram_users" in fields else None
    subscriptions = _plain(fields["subscriptions"], errors) if "subscriptions" in fields else None
    if errors:
        raise DeclaredQuotaError(errors)
    return DeclaredFile(quotas, subscriptions, users)


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


def _scram_users(entries: yaml.Node, errors: list[str]) -> list[DeclaredScramUser]:
    if not isinstance(entries, yaml.SequenceNode):
        errors.append(f"line {_line(entries)}: `scram_users` is not a list")
        return []
    users: dict[tuple[str, str], DeclaredScramUser] = {}
    for node in entries.value:
        count = len(errors)
        user = _scram_user(node, errors)
        if (user.user, user.mechanism) in users and len(errors) == count:
            errors.append(f"line {_line(node)}: {user.mechanism} of {user.user} a second time")
        users[user.user, user.mechanism] = user
    return list(users.values())


def _scram_user(node: yaml.Node, errors: list[str]) -> DeclaredScramUser:
    fields = {name: _scalar(value) for name, value in _fields(node, _SCRAM_FIELDS, "the entry", errors).items()}
    where = f"line {_line(node)}"
    texts = {name: fields.get(name, "") for name in _SCRAM_FIELDS if name != "iterations"}
    errors += [f"{where}: {name} is not text" for name, value in texts.items() if not isinstance(value, str)]
    if not texts["user"]:
        errors.append(f"{where}: the entry has no `user`")
    if texts["mechanism"] not in SCRAM_MECHANISMS:
        errors.append(f"{where}: mechanism is not one of {', '.join(SCRAM_MECHANISMS)}")
    if texts["password_file"] and texts["password_env"]:
        errors.append(f"{where}: password_file and password_env exclude each other")
    iterations = fields.get("iterations", MIN_ITERATIONS)
    valid = isinstance(iterations, int) and MIN_ITERATIONS <= iterations <= MAX_ITERATIONS
    if iterations is not None and not valid:
        errors.append(f"{where}: iterations is not a number from {MIN_ITERATIONS} to {MAX_ITERATIONS}, or null")
    return DeclaredScramUser(str(texts["user"]), str(texts["mechanism"]), iterations, *_password(texts))


def _password(texts: Mapping[str, Any]) -> tuple[str, str]:
    return str(texts["password_file"]), str(texts["password_env"])


def quota_file(
    quotas: Iterable[DeclaredQuota] | None, heading: str = "", sections: Mapping[str, Any] | None = None
) -> str:
    """The YAML that `parse_declared_file` reads. `quotas`: None leaves the section out, which `apply --prune` then does
    not take as nothing to keep. `sections`: beside the quotas."""
    written = list(quotas or ())
    own = {} if quotas is None else {"quotas": [_document(quota) for quota in written]}
    document = {**own, **(sections or {})}
    # PyYAML does not escape all line breaks of Unicode unless it escapes everything beyond ASCII.
    names = "".join(name or "" for quota in written for _, name in quota.entity)
    body = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=(names + str(sections or "")).isprintable(), width=120
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
