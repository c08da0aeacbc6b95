"""What has to change so that a cluster has the quotas and the subscriptions of a file. Sans-I/O."""

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from quota_metrics.config.entities import Entity, QuotaAlteration, Rules
from quota_metrics.config.quota_file import DeclaredQuota

Holder = TypeVar("Holder")  # of values: an entity, or the name of a subscription
Value = TypeVar("Value")

# The controller writes the records of a request in one batch, of at most 10,000
# (QuorumController.MAX_RECORDS_PER_BATCH).
MOST_VALUES_PER_REQUEST = 5_000

Subscriptions: TypeAlias = Mapping[str, Mapping[str, str]]  # name -> key -> value, of a cluster
DeclaredSubscriptions: TypeAlias = Mapping[str, Mapping[str, str | None]]  # of a file; None must not exist


class Action(StrEnum):
    SET = "set"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Difference(Generic[Holder, Value]):
    """One value that differs. `why`: when it is not just what the file says."""

    holder: Holder
    key: str
    before: Value | None
    after: Value | None
    owner: str = ""
    why: str = ""

    @property
    def action(self) -> Action:
        if self.after is None:
            return Action.REMOVE
        return Action.SET if self.before is None else Action.CHANGE


QuotaDifference: TypeAlias = Difference[Entity, float]
SubscriptionDifference: TypeAlias = Difference[str, str]


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """`changes`: what apply does. `unmanaged`: values of the cluster that the file does not name, which stay."""

    base: str  # fingerprint of the cluster's quotas
    changes: list[QuotaDifference]
    unmanaged: list[QuotaDifference]
    subscription_changes: Sequence[SubscriptionDifference] = ()
    unmanaged_subscriptions: Sequence[SubscriptionDifference] = ()
    has_subscriptions: bool = False  # whether the file has this section

    @property
    def all_changes(self) -> list[QuotaDifference | SubscriptionDifference]:
        return [*self.changes, *self.subscription_changes]

    @property
    def alterations(self) -> list[QuotaAlteration]:
        return alterations_of(self.changes)

    @property
    def altered_subscriptions(self) -> DeclaredSubscriptions:
        """Name -> keys to set, None to remove."""
        return _grouped((change.holder, change.key, change.after) for change in self.subscription_changes)


def quota_plan(
    rules: Rules, declared: Sequence[DeclaredQuota], today: datetime.date, *, prune: bool = False
) -> QuotaPlan:
    """`rules`: of the cluster. `prune`: values that the file does not name are removed."""
    by_entity = {quota.entity: quota for quota in declared}
    changes, unmanaged = differences(rules, {quota.entity: quota.in_force(today) for quota in declared})
    for place, change in enumerate(changes):
        quota = by_entity[change.holder]
        why = f"expired on {quota.expires}" if quota.is_expired(today) else ""
        changes[place] = replace(change, owner=quota.owner, why=why)
    unmanaged.sort(
        key=lambda change: ([(kind, name is not None, name or "") for kind, name in change.holder], change.key)
    )
    if prune:
        changes, unmanaged = [*changes, *unmanaged], []
    return QuotaPlan(cluster_fingerprint(rules), changes, unmanaged)


def differences(
    current: Mapping[Holder, Mapping[str, Value]], declared: Mapping[Holder, Mapping[str, Value | None]]
) -> tuple[list[Difference[Holder, Value]], list[Difference[Holder, Value]]]:
    """What the file changes, and what the cluster has beyond the file."""
    changes = [
        Difference(holder, key, current.get(holder, {}).get(key), after)
        for holder, values in declared.items()
        for key, after in values.items()
        if current.get(holder, {}).get(key) != after
    ]
    unmanaged: list[Difference[Holder, Value]] = [
        Difference(holder, key, before, None, why="not in the file")
        for holder, values in current.items()
        for key, before in sorted(values.items())
        if key not in declared.get(holder, {})
    ]
    return changes, unmanaged


def alterations_of(changes: Iterable[QuotaDifference]) -> list[QuotaAlteration]:
    values = _grouped((change.holder, change.key, change.after) for change in changes)
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


def undo(plan: QuotaPlan) -> tuple[list[DeclaredQuota], dict[str, dict[str, str | None]]]:
    """Entries and subscriptions that bring back what was before; null for what did not exist."""
    values = _grouped((change.holder, change.key, change.before) for change in plan.changes)
    keys = _grouped((change.holder, change.key, change.before) for change in plan.subscription_changes)
    return [DeclaredQuota(entity, of_entity) for entity, of_entity in values.items()], keys


def _grouped(values: Iterable[tuple[Holder, str, Value]]) -> dict[Holder, dict[str, Value]]:
    """By entity, or by name of a subscription: the values by key."""
    grouped: dict[Holder, dict[str, Value]] = {}
    for holder, key, value in values:
        grouped.setdefault(holder, {})[key] = value
    return grouped


def cluster_fingerprint(rules: Rules, subscriptions: Subscriptions | None = None) -> str:
    """Equal for equal content, whatever its order."""
    entries = sorted((json.dumps(entity), sorted(values.items())) for entity, values in rules.items() if values)
    content = entries if subscriptions is None else [entries, subscriptions]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
