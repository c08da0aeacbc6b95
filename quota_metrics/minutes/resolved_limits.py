"""The limits of clients whose rows do not say them, from the history of quotas (quota_limits)."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from exporters.clickhouse.client import ClickHouse
from exporters.model import DEFAULT_ENTITY, QuotaLimit
from quota_metrics.config.entities import entity_text
from quota_metrics.config.resolution import CLIENT_KEYS, Resolution, bucket_names
from quota_metrics.config.timeline import Pair, epochs
from quota_metrics.minutes.records import records, statement
from quota_metrics.minutes.rows import ClientLimits, LimitInterval
from quota_metrics.verdict.thresholds import LARGEST_RATE

ClientKey: TypeAlias = tuple[str, str, str, str]  # cluster, quota key, user, client-id
_NO_LIMIT = -1.0


def recorded_limits(
    store: ClickHouse, clients: Collection[ClientKey], from_ms: int, to_ms: int, cluster: str = ""
) -> ClientLimits:
    """`resolved_limits` by the stored history. Raises StoreError."""
    span = {"to_ms": to_ms, "cluster": cluster, "quota_keys": CLIENT_KEYS}
    history = [QuotaLimit._make(row) for row in records(store.table(statement("limits"), span))] if clients else []
    return ClientLimits(resolved_limits(clients, history, from_ms, to_ms) if history else {})


def resolved_limits(
    clients: Iterable[ClientKey], history: Iterable[QuotaLimit], from_ms: int, to_ms: int
) -> dict[ClientKey, list[LimitInterval]]:
    """The limit of each client in [from_ms, to_ms), as intervals that follow one another.

    `unknown`: no quota was observed yet, neither of the cluster nor of a rule that fits the client later; `none`: no
    quota applies. Kafka accepts NaN as a value and never throttles by it, and Long.MAX_VALUE means "unlimited": such a
    rule is no limit, but still overrides less specific ones.
    """
    pairs: dict[str, list[Pair]] = defaultdict(list)
    for cluster, quota_key, user, client_id in clients:
        pairs[cluster].append((quota_key, user, client_id))
    observed: dict[str, list[QuotaLimit]] = defaultdict(list)
    for row in history:
        if row.valid_from_ms < to_ms and not row.ip:
            observed[row.cluster].append(row)
    limits: dict[ClientKey, list[LimitInterval]] = {}
    for cluster, of_cluster in pairs.items():
        rows = observed.get(cluster, [])
        resolutions = _resolutions(rows, of_cluster, from_ms, to_ms)
        sightings = _Sightings(rows)
        for pair in of_cluster:
            limits[cluster, *pair] = _intervals(pair, resolutions[pair], sightings, from_ms, to_ms)
    return limits


def _resolutions(
    rows: Sequence[QuotaLimit], pairs: Sequence[Pair], from_ms: int, to_ms: int
) -> Mapping[Pair, list[tuple[int, Resolution | None]]]:
    """Per pair (since when, resolution), each different from the one before."""
    changes: dict[Pair, list[tuple[int, Resolution | None]]] = {pair: [] for pair in pairs}
    for epoch in epochs(rows, (), pairs, from_ms):
        for pair, quota in epoch.quotas.items() if epoch.since_ms < to_ms else ():
            if not changes[pair] or changes[pair][-1][1] != quota.after:
                changes[pair].append((epoch.since_ms, quota.after))
    return changes


class _Sightings:
    """When quotas of a cluster, and each of its rules, were observed first."""

    def __init__(self, rows: Sequence[QuotaLimit]) -> None:
        self.cluster_ms = min((row.valid_from_ms for row in rows), default=math.inf)
        self._rules: dict[tuple[str, str, str], int] = {}
        self._valued = {(row.quota_key, row.user, row.client_id) for row in rows if row.value is not None}
        for row in rows:
            rule = (row.quota_key, row.user, row.client_id)
            self._rules[rule] = min(row.valid_from_ms, self._rules.get(rule, row.valid_from_ms))

    def of_rules(self, pair: Pair) -> list[int]:
        """Of the rules that fit the pair. In quota_limits '' means absent."""
        quota_key, user, client_id = pair
        named = product({user, DEFAULT_ENTITY, ""}, {client_id, DEFAULT_ENTITY, ""})
        rules = ((quota_key, *names) for names in named if names != ("", ""))
        return [self._rules[rule] for rule in rules if rule in self._valued]


def _intervals(
    pair: Pair, resolutions: Sequence[tuple[int, Resolution | None]], sightings: _Sightings, from_ms: int, to_ms: int
) -> list[LimitInterval]:
    seen_ms = [sightings.cluster_ms, *sightings.of_rules(pair)]
    newest_ms = max(seen_ms)  # from then on everything that can fit was observed
    times = {from_ms, *(since_ms for since_ms, _ in resolutions), *(int(at) for at in seen_ms if math.isfinite(at))}
    starts = sorted(at for at in times if from_ms <= at < to_ms)
    intervals: list[LimitInterval] = []
    for start_ms, end_ms in pairwise([*starts, to_ms]):
        resolution = next((quota for since_ms, quota in reversed(resolutions) if since_ms <= start_ms), None)
        interval = LimitInterval(start_ms, end_ms, *_limit(pair, resolution, is_unseen=start_ms < newest_ms))
        if intervals and intervals[-1][2:] == interval[2:]:
            intervals[-1] = intervals[-1]._replace(to_ms=end_ms)
        else:
            intervals.append(interval)
    return intervals


class _Limit(NamedTuple):
    """The fields of LimitInterval after the times."""

    state: str
    limit: float
    matched_entity: str
    bucket_user: str
    bucket_client_id: str


def _limit(pair: Pair, resolution: Resolution | None, *, is_unseen: bool) -> _Limit:
    _, user, client_id = pair
    if resolution is not None and 0 <= resolution.value <= LARGEST_RATE:  # false for NaN, too
        return _Limit("limited", resolution.value, entity_text(resolution.entity), *bucket_names(resolution))
    state = "unknown" if resolution is None and is_unseen else "none"
    return _Limit(state, _NO_LIMIT, "", user, client_id)
