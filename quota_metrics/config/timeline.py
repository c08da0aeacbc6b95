"""Quotas over time: the rows of quota_limits from descriptions of a cluster, and from these rows the quotas of clients,
also as they would be after a change. Sans-I/O."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple, TypeAlias

from exporters.model import DEFAULT_ENTITY, QuotaLimit
from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import CLIENT_ID, IP, TYPES, USER, Entity, QuotaAlteration, Rules, entity_of_names
from quota_metrics.config.resolution import Resolution, Resolver
from quota_metrics.windows import UNLIMITED

Pair: TypeAlias = tuple[str, str, str]  # quota key, user, client-id
BucketKey: TypeAlias = tuple[str, str, str]  # quota key, and user and client-id of the metric tags: who shares a limit

_Place: TypeAlias = tuple[str, str, str, str]  # user, client-id, ip, quota key


class LimitHistory:
    """Turns successive descriptions of one cluster's quotas into the rows of quota_limits.

    `stored`: rows written earlier, in any order. With them, no row is repeated after a restart, and quotas removed in
    the meantime are detected.
    """

    def __init__(self, cluster: str, stored: Iterable[QuotaLimit] = ()) -> None:
        self._cluster = cluster
        self._values = {place: value for place, value in _newest(stored).items() if value is not None}

    def changes(self, described: Rules, now_ms: int) -> list[QuotaLimit]:
        """One row per new or changed value, and one with value None per removed value.

        `described` is the whole configuration (KafkaAdmin.describe_client_quotas without a filter).
        """
        current: dict[_Place, float] = {}
        for entity, values in described.items():
            if has_a_row(entity):
                names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in entity}
                user, client_id, ip = (names.get(kind, "") for kind in (USER, CLIENT_ID, IP))
                for key, value in values.items():
                    current[user, client_id, ip, key] = value if math.isfinite(value) else UNLIMITED
        changes: list[tuple[_Place, float | None]] = [
            (place, value) for place, value in current.items() if self._values.get(place) != value
        ]
        changes += [(place, None) for place in sorted(self._values.keys() - current.keys())]
        self._values = current
        return [QuotaLimit(self._cluster, *place, now_ms, value) for place, value in changes]


def unrecorded(changes: Iterable[QuotaLimit], stored: Iterable[QuotaLimit]) -> list[QuotaLimit]:
    """The changes that `stored` does not contain; another gateway of the cluster recorded the others."""
    newest = _newest(stored)
    return [row for row in changes if newest.get((row.user, row.client_id, row.ip, row.quota_key)) != row.value]


def _newest(rows: Iterable[QuotaLimit]) -> dict[_Place, float | None]:
    ordered = sorted(rows, key=lambda row: row.valid_from_ms)
    return {(row.user, row.client_id, row.ip, row.quota_key): row.value for row in ordered}


def has_a_row(entity: Entity) -> bool:
    """Whether a row can represent the entity: each type has a column, and no name is the mark of 'absent' or 'default'.

    Kafka accepts neither an empty name nor other types. It accepts infinity and NaN, which never throttle.
    """
    return all(kind in TYPES and name not in ("", DEFAULT_ENTITY) for kind, name in entity)


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
        return _groups((pair, change.before) for pair, change in self.quotas.items())

    @cached_property
    def groups(self) -> Mapping[BucketKey, set[Pair]]:
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
    changes_at: dict[int, list[QuotaAlteration]] = {from_ms: []}
    for row in sorted(history, key=lambda row: row.valid_from_ms):
        change = QuotaAlteration(entity_of_names(row.user, row.client_id, row.ip), {row.quota_key: row.value})
        changes_at.setdefault(max(row.valid_from_ms, from_ms), []).append(change)
    rules: Rules = {}
    for since_ms, changes in changes_at.items():
        rules = altered(rules, *changes)
        yield since_ms, rules


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
