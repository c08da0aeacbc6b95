"""The quotas of clients over time, as recorded in quota_limits, and as they would be after a change. Sans-I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, TypeAlias

from exporters.model import DEFAULT_ENTITY, QuotaLimit
from quota_metrics.config.entities import CLIENT_ID, IP, USER, Alteration, Entity, Rules, entity_of
from quota_metrics.config.resolution import Resolution, Resolver
from quota_metrics.config.validation import altered

Pair: TypeAlias = tuple[str, str, str]  # quota key, user, client-id
BucketKey: TypeAlias = tuple[str, str, str]  # quota key, and user and client-id of the metric tags: who shares a limit


class QuotaChange(NamedTuple):
    """The quota of a pair before and after the change; None if none applies."""

    before: Resolution | None
    after: Resolution | None


class Epoch:
    """A configuration in force from `since_ms` on, and the quotas of the pairs before and after the change."""

    def __init__(self, since_ms: int, rules: Rules, alteration: Alteration, pairs: Iterable[Pair]) -> None:
        before, after = Resolver(rules), Resolver(altered(rules, alteration))
        self.since_ms = since_ms
        self.quotas = {
            (key, user, client_id): QuotaChange(
                before.resolve(user, client_id).get(key), after.resolve(user, client_id).get(key)
            )
            for key, user, client_id in pairs
        }
        self.groups_before = _groups((pair, change.before) for pair, change in self.quotas.items())
        self.groups = _groups((pair, change.after) for pair, change in self.quotas.items())

    def affected(self) -> set[Pair]:
        """Pairs whose quota changes, and pairs that share a quota with them before or after."""
        affected: set[Pair] = set()
        for pair, change in self.quotas.items():
            if _differ(*change):
                affected.add(pair)
                for key in (bucket_key(pair, rule) for rule in change):
                    if key is not None:
                        affected |= self.groups_before.get(key, set()) | self.groups.get(key, set())
        return affected

    def may_use_more(self, pair: Pair) -> bool:
        """Whether the pair may be able to use more than before: its limit is higher, removed, or shared with fewer
        pairs."""
        before, after = self.quotas[pair]
        was, now = bucket_key(pair, before), bucket_key(pair, after)
        if before is None or after is None or was is None or now is None:
            return before is not None and after is None
        return after.value > before.value or not self.groups_before[was] <= self.groups[now]


def epochs(
    history: Iterable[QuotaLimit], alteration: Alteration, pairs: Iterable[Pair], from_ms: int
) -> Iterator[Epoch]:
    """The configuration at `from_ms`, then each later change. `history`: rows of one cluster, in any order."""
    wanted = list(pairs)
    for since_ms, rules in configurations(history, from_ms):
        yield Epoch(since_ms, rules, alteration, wanted)


def configurations(history: Iterable[QuotaLimit], from_ms: int) -> Iterator[tuple[int, Rules]]:
    """Pairs of (in force since, configuration), each a separate mapping."""
    rows = sorted(history, key=lambda row: row.valid_from_ms)
    rules: dict[Entity, dict[str, float]] = {}
    _apply(rules, (row for row in rows if row.valid_from_ms <= from_ms))
    yield from_ms, _copy(rules)
    later = (row for row in rows if row.valid_from_ms > from_ms)
    for since_ms, changes in groupby(later, key=lambda row: row.valid_from_ms):
        _apply(rules, changes)
        yield since_ms, _copy(rules)


def bucket_key(pair: Pair, rule: Resolution | None) -> BucketKey | None:
    """Pairs with equal keys share a limit; None without a limit."""
    return None if rule is None else (pair[0], rule.metric_tags[USER], rule.metric_tags[CLIENT_ID])


def _groups(rules: Iterable[tuple[Pair, Resolution | None]]) -> Mapping[BucketKey, set[Pair]]:
    groups: dict[BucketKey, set[Pair]] = defaultdict(set)
    for pair, rule in rules:
        key = bucket_key(pair, rule)
        if key is not None:
            groups[key].add(pair)
    return dict(groups)


def _differ(before: Resolution | None, after: Resolution | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (before.value, before.metric_tags) != (after.value, after.metric_tags)


def _apply(rules: dict[Entity, dict[str, float]], changes: Iterable[QuotaLimit]) -> None:
    for row in changes:
        values = rules.setdefault(_entity(row), {})
        if row.value is None:
            values.pop(row.quota_key, None)
        else:
            values[row.quota_key] = row.value


def _copy(rules: dict[Entity, dict[str, float]]) -> Rules:
    """Without entities that have no values left."""
    return {entity: dict(values) for entity, values in rules.items() if values}


def _entity(row: QuotaLimit) -> Entity:
    """The inverse of LimitHistory's encoding (quota_metrics.config.history)."""
    names = {USER: row.user, CLIENT_ID: row.client_id, IP: row.ip}
    return entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})
