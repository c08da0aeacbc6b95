"""What has to change so that a cluster has the quotas of a file. Sans-I/O."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quota_metrics.config.entities import Entity, QuotaAlteration, Rules
from quota_metrics.config.file_plan import Action, FileSection, ResourceDifference, action_of, file_fingerprint
from quota_metrics.config.quota_file import DeclaredQuota

# The controller writes the records of a request in one batch, of at most 10,000
# (QuorumController.MAX_RECORDS_PER_BATCH).
MOST_VALUES_PER_REQUEST = 5_000


@dataclass(frozen=True, slots=True)
class QuotaDifference:
    """One value that differs. `why`: when it is not just what the file says."""

    entity: Entity
    key: str
    before: float | None
    after: float | None
    owner: str = ""
    why: str = ""

    @property
    def action(self) -> Action:
        return action_of(self.before, self.after)


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """`changes`: what apply does. `unmanaged`: values of the cluster that the file does not name, which stay."""

    base: str  # fingerprint of the cluster's quotas
    changes: list[QuotaDifference]
    unmanaged: list[QuotaDifference]
    resource_changes: Sequence[ResourceDifference] = ()
    unmanaged_resources: Sequence[ResourceDifference] = ()
    sections: Sequence[FileSection] = ()  # beside the quotas, which the file has

    @property
    def count(self) -> int:
        """Changed values of all sections."""
        return len(self.changes) + len(self.resource_changes)

    @property
    def alterations(self) -> list[QuotaAlteration]:
        return alterations_of(self.changes)


def quota_plan(
    rules: Rules, declared: Sequence[DeclaredQuota], today: datetime.date, *, prune: bool = False
) -> QuotaPlan:
    """`rules`: of the cluster. `prune`: values that the file does not name are removed."""
    changes = [difference for quota in declared for difference in _of_entry(rules, quota, today)]
    unmanaged = sorted(_unmanaged(rules, declared), key=lambda each: (_order(each.entity), each.key))
    if prune:
        changes, unmanaged = [*changes, *unmanaged], []
    return QuotaPlan(file_fingerprint(rules, {}), changes, unmanaged)


def alterations_of(changes: Iterable[QuotaDifference]) -> list[QuotaAlteration]:
    """One for each entity."""
    values: dict[Entity, dict[str, float | None]] = {}
    for change in changes:
        values.setdefault(change.entity, {})[change.key] = change.after
    return [QuotaAlteration(entity, of_entity) for entity, of_entity in values.items()]


def requests(
    alterations: Iterable[QuotaAlteration], most: int = MOST_VALUES_PER_REQUEST
) -> Iterator[list[QuotaAlteration]]:
    """Alterations for one request each; those of an entity are never divided."""
    batch: list[QuotaAlteration] = []
    count = 0
    for alteration in alterations:
        if batch and count + len(alteration.values) > most:
            yield batch
            batch, count = [], 0
        batch.append(alteration)
        count += len(alteration.values)
    if batch:
        yield batch


def undo(changes: Iterable[QuotaDifference]) -> list[DeclaredQuota]:
    """Entries that bring back what was before; null for what did not exist."""
    values: dict[Entity, dict[str, float | None]] = {}
    for change in changes:
        values.setdefault(change.entity, {})[change.key] = change.before
    return [DeclaredQuota(entity, of_entity) for entity, of_entity in values.items()]


def _of_entry(rules: Rules, quota: DeclaredQuota, today: datetime.date) -> Iterator[QuotaDifference]:
    current = rules.get(quota.entity, {})
    why = f"expired on {quota.expires}" if quota.is_expired(today) else ""
    for key, after in quota.in_force(today).items():
        before = current.get(key)
        if before != after:
            yield QuotaDifference(quota.entity, key, before, after, quota.owner, why)


def _unmanaged(rules: Rules, declared: Iterable[DeclaredQuota]) -> Iterator[QuotaDifference]:
    named = {(quota.entity, key) for quota in declared for key in quota.values}
    for entity, values in rules.items():
        for key, value in values.items():
            if (entity, key) not in named:
                yield QuotaDifference(entity, key, value, None, why="not in the file")


def _order(entity: Entity) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in entity]
