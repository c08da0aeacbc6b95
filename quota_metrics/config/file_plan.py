"""What has to change so that a cluster has the subscriptions and SCRAM users of a file. Sans-I/O.

Both are names with keys: a subscription has `metrics`, `interval.ms` and `match`, a SCRAM user its mechanisms,
of which the value is the number of iterations. A password cannot be compared, since a cluster
gives none away (KIP-554).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from quota_metrics.config.entities import Rules

Resources = Mapping[str, Mapping[str, str]]  # name -> key -> value, of a cluster
DeclaredResources = Mapping[str, Mapping[str, str | None]]  # of a file; None must not exist


class Action(StrEnum):
    """What happens to one value."""

    SET = "set"
    CHANGE = "change"
    REMOVE = "remove"


def action_of(before: object | None, after: object | None) -> Action:
    """What makes a value, None where there is none, from the one before."""
    if after is None:
        return Action.REMOVE
    return Action.SET if before is None else Action.CHANGE


class FileSection(StrEnum):
    """The sections of a file beside `quotas`."""

    SUBSCRIPTIONS = "subscriptions"
    SCRAM_USERS = "scram_users"


@dataclass(frozen=True, slots=True)
class ResourceDifference:
    """One key that differs. `why`: when it is not just what the file says."""

    section: FileSection
    name: str
    key: str
    before: str | None
    after: str | None
    why: str = ""

    @property
    def action(self) -> Action:
        return action_of(self.before, self.after)

    @property
    def has_undo(self) -> bool:
        """A credential that was replaced or removed cannot be brought back: its password is not known."""
        return self.section is not FileSection.SCRAM_USERS or self.before is None


def resource_differences(
    section: FileSection, current: Resources, declared: DeclaredResources
) -> tuple[list[ResourceDifference], list[ResourceDifference]]:
    """What the file changes, and what the cluster has beyond the file."""
    changes = [
        ResourceDifference(section, name, key, current.get(name, {}).get(key), after)
        for name, keys in declared.items()
        for key, after in keys.items()
        if current.get(name, {}).get(key) != after
    ]
    unmanaged = [
        ResourceDifference(section, name, key, before, None, "not in the file")
        for name, keys in sorted(current.items())
        for key, before in sorted(keys.items())
        if key not in declared.get(name, {})
    ]
    return changes, unmanaged


def altered(changes: Iterable[ResourceDifference], section: FileSection) -> dict[str, dict[str, str | None]]:
    """Name -> keys to set, None to remove."""
    return _by_name((each.name, each.key, each.after) for each in changes if each.section is section)


def undone(changes: Iterable[ResourceDifference], section: FileSection) -> dict[str, dict[str, str | None]]:
    """Name -> keys as they were, of the changes that have an undo."""
    found = (each for each in changes if each.section is section and each.has_undo)
    return _by_name((each.name, each.key, each.before) for each in found)


def file_fingerprint(rules: Rules, resources: Mapping[FileSection, Resources]) -> str:
    """Equal for equal content, whatever its order."""
    entries = sorted((json.dumps(entity), sorted(values.items())) for entity, values in rules.items() if values)
    content = [entries, resources] if resources else entries
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _by_name(keys: Iterable[tuple[str, str, str | None]]) -> dict[str, dict[str, str | None]]:
    found: dict[str, dict[str, str | None]] = {}
    for name, key, value in keys:
        found.setdefault(name, {})[key] = value
    return found


def credentials(resources: DeclaredResources) -> Iterator[tuple[str, str, str | None]]:
    """(user, mechanism, iterations)."""
    for user, mechanisms in resources.items():
        for mechanism, iterations in mechanisms.items():
            yield user, mechanism, iterations
