"""Parses the flags of `headroom quotas` to entities, filters and changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from headroom.cli.cluster import utf8
from headroom.errors import ArgumentError
from quota_metrics.config.entities import CLIENT_ID, IP, TYPES, USER, Entity, FilterComponent, MatchType, entity_of


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
        return entity_of(self.names)

    def client(self) -> tuple[str | None, str | None, str | None]:
        """As one client: user, client-id, address; None means unknown."""
        return self.names.get(USER), self.names.get(CLIENT_ID), self.names.get(IP)


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
