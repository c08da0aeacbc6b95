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

Each entry is read by itself. One with an error is left out, and the error is named with its line.
"""

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.broker_refusals import SCRAM_IS_IGNORED, refusal
from quota_metrics.config.entities import TYPES, Entity, QuotaAlteration, Rules, entity_of, text

try:  # libyaml is ten times as fast, if PyYAML was built with it
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WITH_A_UNIT = f", with a unit ({', '.join(unit for unit in _UNITS if unit)})"
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?) ?(kB|KiB|[MG]i?B|)")
SECTIONS = ("quotas", "subscriptions")
_SCRAM_USERS = "scram_users"
MAX_TEXT = 1_000  # characters of an owner or a comment


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
    """A section that the file does not have is None. `subscriptions` are as YAML has them, not yet checked. `errors`
    has a line for each error of the entries that are left out, `ignored` one for each part that is not Headroom's."""

    quotas: list[DeclaredQuota] | None
    subscriptions: Any = None
    errors: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def _name(written: object) -> object:
    if not isinstance(written, str) or not written:
        raise ValueError(f"{'empty: name it' if written == '' else 'not text: quote it'}, or write {DEFAULT_ENTITY}")
    return None if written == DEFAULT_ENTITY else written


def _number(written: object, units: str = "") -> object:
    """A number in quotes, as Terraform has all of them, is one."""
    amount = _AMOUNT.fullmatch(written) if isinstance(written, str) else None
    if amount is not None and (units or not amount[2]):
        return float(amount[1]) * _UNITS[amount[2]]
    if written is not None and (isinstance(written, bool) or not isinstance(written, int | float)):
        raise ValueError(f"not a number{units} or null")
    return written


_Name: TypeAlias = Annotated[str | None, BeforeValidator(_name)]
_Number: TypeAlias = Annotated[float | None, BeforeValidator(_number)]
_ByteRate: TypeAlias = Annotated[float | None, BeforeValidator(partial(_number, units=_WITH_A_UNIT))]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)

    def written(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_unset=True)


class _Names(_FileModel):
    user: _Name = None
    client_id: _Name = Field(default=None, alias="client-id")
    ip: _Name = None


class _Values(_FileModel):
    producer_byte_rate: _ByteRate = None
    consumer_byte_rate: _ByteRate = None
    request_percentage: _Number = None
    controller_mutation_rate: _Number = None
    connection_creation_rate: _Number = None


class _QuotaEntry(_FileModel):
    entity: _Names
    values: _Values
    owner: str = Field(default="", max_length=MAX_TEXT)
    comment: str = Field(default="", max_length=MAX_TEXT)
    expires: datetime.date | None = Field(default=None, strict=True)


class UniqueKeys(_SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML's own loader silently ignores the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} a second time", problem_mark=key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def parse_declared_file(content: str | bytes) -> DeclaredFile:
    """All sections of a file, and the errors of its entries; of another document one error alone."""
    try:
        root = yaml.compose(content, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        return DeclaredFile(None, errors=[_yaml_error(exc, "not YAML: ")])
    if not isinstance(root, yaml.MappingNode) or not root.value:
        line = 1 if root is None else _line(root)
        return DeclaredFile(None, errors=[f"line {line}: the file is not a mapping with {', '.join(SECTIONS)}"])
    errors: list[str] = []
    ignored: list[str] = []
    sections: dict[str, yaml.Node] = {}
    for key, node in root.value:
        if not isinstance(key, yaml.ScalarNode):
            errors.append(f"line {_line(key)}: the file has a field that is not text")
        elif key.value == _SCRAM_USERS:
            ignored.append(f"line {_line(key)}: {_SCRAM_USERS}: {SCRAM_IS_IGNORED}")
        elif key.value not in SECTIONS:
            errors.append(f"line {_line(key)}: the file has no field {key.value!r}, only {', '.join(SECTIONS)}")
        elif key.value in sections:
            errors.append(f"line {_line(key)}: {key.value} a second time")
        else:
            sections[key.value] = node
    subscriptions: Any = None
    if "subscriptions" in sections:
        try:
            subscriptions = _constructed(sections["subscriptions"])
            subscriptions = {} if subscriptions is None else subscriptions
        except (yaml.YAMLError, ValueError, RecursionError) as exc:
            errors.append(_yaml_error(exc, "subscriptions: "))
    quotas = _quotas(sections["quotas"], errors) if "quotas" in sections else None
    return DeclaredFile(quotas, subscriptions, errors, ignored)


def _quotas(entries: yaml.Node, errors: list[str]) -> list[DeclaredQuota]:
    """Those without errors."""
    if not isinstance(entries, yaml.SequenceNode):
        errors.append(f"line {_line(entries)}: `quotas` is not a list")
        return []
    declared: dict[Entity, DeclaredQuota] = {}
    for node in entries.value:
        try:
            entry = _QuotaEntry.model_validate(_constructed(node))
        except ValidationError as exc:
            errors += [f"line {_line_of(node, error['loc'])}: {_explained(error)}" for error in exc.errors()]
            continue
        except (yaml.YAMLError, ValueError, RecursionError) as exc:
            errors.append(_yaml_error(exc))
            continue
        entity, values = entity_of(entry.entity.written()), entry.values.written()
        refused = [
            f"line {_line_of(node, ('values', key))}: {text(entity)}: {message}"
            for key, value in values.items()
            if (message := refusal(QuotaAlteration(entity, {key: 1.0 if value is None else value})))
        ]
        if not entity:
            refused = [f"line {_line_of(node, ('entity',))}: the entity names none of {', '.join(TYPES)}"]
        if not values:
            refused.append(f"line {_line_of(node, ('values',))}: `values` is empty")
        if entity in declared:
            refused.append(f"line {_line(node)}: {text(entity)} a second time")
        errors += refused
        if not refused:
            declared[entity] = DeclaredQuota(entity, values, entry.owner, entry.comment, entry.expires)
    return list(declared.values())


def _constructed(node: yaml.Node) -> Any:
    return UniqueKeys("").construct_object(node, deep=True)


def _explained(error: Any) -> str:
    *parents, field_name = [str(part) for part in error["loc"]] or ["the entry"]
    if error["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"entity": _Names, "values": _Values, "": _QuotaEntry}
        fields = ", ".join(info.alias or name for name, info in models["".join(parents)].model_fields.items())
        return f"{f'`{parents[-1]}`' if parents else 'the entry'} has no field {field_name!r}, only {fields}"
    if error["type"] == "missing":
        return f"the entry has no `{field_name}`"
    if error["type"] in ("model_type", "model_attributes_type"):
        return f"{field_name} is not a mapping"
    if error["type"] in ("string_too_long", "string_type") and field_name in ("owner", "comment"):
        return f"{field_name} is not text of at most {MAX_TEXT} characters"
    if error["type"].startswith("date"):
        return f"{field_name} is not a date, as 2027-03-31"
    return (
        f"{field_name} is {error['ctx']['error']}"
        if error["type"] == "value_error"
        else f"{field_name}: {error['msg']}"
    )


def _yaml_error(exc: Exception, prefix: str = "") -> str:
    mark = getattr(exc, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    return f"{where}{prefix}{getattr(exc, 'problem', None) or exc}"


def _line_of(node: yaml.Node, path: Iterable[int | str]) -> int:
    """Of the key that the path of names leads to, as far as it is in the file."""
    line = _line(node)
    for name in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        fields = {key.value: (key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)}
        if name not in fields:
            break
        key, node = fields[name]
        line = _line(key)
    return line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def quota_file(
    quotas: Iterable[DeclaredQuota] | None,
    heading: str = "",
    subscriptions: Mapping[str, Mapping[str, str | None]] | None = None,
) -> str:
    """The YAML that `parse_declared_file` reads. None leaves a section out, which `apply --prune` then does not take as
    nothing to keep."""
    document: dict[str, Any] = {} if quotas is None else {"quotas": []}
    for quota in quotas or ():
        values = {
            key: int(value) if value is not None and value.is_integer() else value
            for key, value in quota.values.items()
        }
        names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in quota.entity}
        more = {"owner": quota.owner, "comment": quota.comment, "expires": quota.expires}
        document["quotas"].append(
            {"entity": names, "values": values, **{name: value for name, value in more.items() if value}}
        )
    if subscriptions is not None:
        document["subscriptions"] = {name: dict(keys) for name, keys in subscriptions.items()}
    return "".join(f"# {line}\n" for line in heading.splitlines()) + yaml_text(document)


def yaml_text(document: Mapping[str, Any]) -> str:
    """YAML that is read again as it was."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # Unlike libyaml, PyYAML escapes not all line breaks of Unicode unless it escapes everything beyond ASCII.
    is_libyaml = dumper is not yaml.SafeDumper
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=is_libyaml, width=120))


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


def declared_of(rules: Rules, earlier: Iterable[DeclaredQuota] = ()) -> list[DeclaredQuota]:
    """Writable rules as entries, in the order of their names, with owner, comment and expiry of `earlier` entries."""
    before = {quota.entity: quota for quota in earlier}
    ordered = sorted(rules, key=lambda entity: [(TYPES.index(kind), name or "", name is None) for kind, name in entity])
    quotas = []
    for entity in ordered:
        old = before.get(entity, DeclaredQuota(entity, {}))
        quotas.append(DeclaredQuota(entity, dict(sorted(rules[entity].items())), old.owner, old.comment, old.expires))
    return quotas
