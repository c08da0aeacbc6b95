"""What has to change so that a cluster has the quotas and the subscriptions of a file. Sans-I/O."""

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from quota_metrics.config.entities import Entity, QuotaAlteration, Rules
from quota_metrics.config.quota_file import DeclaredQuota

Holder = TypeVar("Holder")  # of values: an entity, or the name of a subscription
Value = TypeVar("Value")

# The controller writes the records of a request in one batch, of at most 10,000
# (QuorumController.MAX_RECORDS_PER_BATCH).
MOST_VALUES_PER_REQUEST = 5_000
_NOT_IN_FILE = "not in the file"

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
    changes = []
    for quota in declared:
        current = rules.get(quota.entity, {})
        why = f"expired on {quota.expires}" if quota.is_expired(today) else ""
        changes += [
            Difference(quota.entity, key, current.get(key), after, quota.owner, why)
            for key, after in quota.in_force(today).items()
            if current.get(key) != after
        ]
    named = {(quota.entity, key) for quota in declared for key in quota.values}
    unmanaged = [
        Difference(entity, key, value, None, why=_NOT_IN_FILE)
        for entity, values in rules.items()
        for key, value in values.items()
        if (entity, key) not in named
    ]
    unmanaged.sort(
        key=lambda change: ([(kind, name is not None, name or "") for kind, name in change.holder], change.key)
    )
    if prune:
        changes, unmanaged = [*changes, *unmanaged], []
    return QuotaPlan(cluster_fingerprint(rules), changes, unmanaged)


def subscription_differences(
    current: Subscriptions, declared: DeclaredSubscriptions
) -> tuple[list[SubscriptionDifference], list[SubscriptionDifference]]:
    """What the file changes, and what the cluster has beyond the file."""
    changes = [
        Difference(name, key, current.get(name, {}).get(key), after)
        for name, keys in declared.items()
        for key, after in keys.items()
        if current.get(name, {}).get(key) != after
    ]
    unmanaged = [
        Difference(name, key, before, None, why=_NOT_IN_FILE)
        for name, keys in sorted(current.items())
        for key, before in sorted(keys.items())
        if key not in declared.get(name, {})
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
