"""The quotas of clients over time, as recorded in quota_limits, and as they would be after a change. Sans-I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, product
from typing import NamedTuple, TypeAlias

from exporters.model import QuotaLimit
from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import CLIENT_ID, USER, Entity, QuotaAlteration, Rules, entity_of_names
from quota_metrics.config.resolution import Resolution, Resolver

Pair: TypeAlias = tuple[str, str, str]  # quota key, user, client-id
BucketKey: TypeAlias = tuple[str, str, str]  # quota key, and user and client-id of the metric tags: who shares a limit


class QuotaChange(NamedTuple):
    """The quota of a pair before and after the change; None if none applies."""

    before: Resolution | None
    after: Resolution | None


class Epoch:
    """A configuration in force from `since_ms` on: the quotas of the pairs before and after the change."""

    def __init__(self, since_ms: int, quotas: Mapping[Pair, QuotaChange]) -> None:
        self.since_ms = since_ms
        self.quotas = quotas

    @cached_property
    def groups_before(self) -> Mapping[BucketKey, set[Pair]]:
        """Pairs that share a limit before the change."""
        return _groups((pair, change.before) for pair, change in self.quotas.items())

    @cached_property
    def groups(self) -> Mapping[BucketKey, set[Pair]]:
        """Pairs that share a limit after the change."""
        return _groups((pair, change.after) for pair, change in self.quotas.items())

    def affected(self) -> set[Pair]:
        """Pairs whose quota changes, and pairs that share a quota with them before or after."""
        affected: set[Pair] = set()
        for pair, change in self.quotas.items():
            limits = [quota and (quota.value, quota.metric_tags) for quota in change]
            if limits[0] != limits[1]:
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
    history: Iterable[QuotaLimit], alterations: Sequence[QuotaAlteration], pairs: Iterable[Pair], from_ms: int
) -> Iterator[Epoch]:
    """The configuration at `from_ms`, then each later change. `history`: rows of one cluster, in any order."""
    quotas: dict[Pair, QuotaChange] = dict.fromkeys(pairs, QuotaChange(None, None))
    earlier: Rules | None = None
    for since_ms, rules in configurations(history, from_ms):
        before, after = Resolver(rules), Resolver(altered(rules, *alterations))
        # (user, client-id) of the entities whose values differ, "*" for any name. None: any pair may be affected,
        # because the kinds of entities differ (ClientQuotaManager.quotaTypesEnabled).
        changed = None
        if earlier is not None and _kinds(earlier) == _kinds(rules):
            entities = (dict(e) for e in earlier.keys() | rules.keys() if earlier.get(e) != rules.get(e))
            changed = {(names.get(USER) or "*", names.get(CLIENT_ID) or "*") for names in entities}
        quotas = {
            pair: QuotaChange(before.quota(*pair), after.quota(*pair))
            if changed is None or not changed.isdisjoint(product((pair[1], "*"), (pair[2], "*")))
            else quotas[pair]
            for pair in quotas
        }
        earlier = rules
        yield Epoch(since_ms, quotas)


def _kinds(rules: Rules) -> set[tuple[str, ...]]:
    """The dimensions of entities with values, for each quota key."""
    return {(key, *dict(entity)) for entity, values in rules.items() for key in values}


def configurations(history: Iterable[QuotaLimit], from_ms: int) -> Iterator[tuple[int, Rules]]:
    """Pairs of (in force since, configuration), each a separate mapping."""
    rows = sorted(history, key=lambda row: row.valid_from_ms)
    rules: dict[Entity, dict[str, float]] = {}
    _apply(rules, (row for row in rows if row.valid_from_ms <= from_ms))
    yield from_ms, altered(rules)
    later = (row for row in rows if row.valid_from_ms > from_ms)
    for since_ms, changes in groupby(later, key=lambda row: row.valid_from_ms):
        _apply(rules, changes)
        yield since_ms, altered(rules)


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


def _apply(rules: dict[Entity, dict[str, float]], changes: Iterable[QuotaLimit]) -> None:
    for row in changes:
        values = rules.setdefault(entity_of_names(row.user, row.client_id, row.ip), {})
        if row.value is None:
            values.pop(row.quota_key, None)
        else:
            values[row.quota_key] = row.value
