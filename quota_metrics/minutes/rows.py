"""Rows of usage_1m as arrays of numpy, in the order of their windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from quota_metrics.minutes.columns import (
    Bools,
    Floats,
    Ints,
    Names,
    encoded,
    joined_codes,
    lists,
    numbers,
    run_of_row,
    seconds_since_epoch,
    starts_of,
)
from quota_metrics.verdict.window import SUMMED

STATES = ("unknown", "none", "limited")  # the later, the nearer to a limit
_ROWS_AT_ONCE = 131_072  # of windows that are computed together


class LimitInterval(NamedTuple):
    """The limit of a client in [from_ms, to_ms)."""

    from_ms: int
    to_ms: int
    state: str  # 'limited', 'none', 'unknown'
    limit: float  # -1: none
    matched_entity: str
    bucket_user: str
    bucket_client_id: str


class ClientLimits(NamedTuple):
    """Limits of clients whose rows do not know them, by cluster, quota key, user and client id; in order of time."""

    intervals: Mapping[tuple[str, str, str, str], Sequence[LimitInterval]]
    assigned: bool = False  # these count, whatever rows know


@dataclass(frozen=True, slots=True)
class Intervals:
    """ClientLimits as arrays: `key` of each client, ascending, where its intervals begin, and the intervals."""

    key: Ints
    start: Ints
    count: Ints
    from_ms: Ints
    to_ms: Ints
    state: Ints
    limit: Floats
    entity: Ints
    bucket_user: Ints
    bucket_client_id: Ints


@dataclass(frozen=True, slots=True)
class MinuteRows:
    """Columns of rows in the order of (cluster, source, quota key, window), user, client id, broker and minute. Texts
    are codes."""

    scope: Ints  # one for each cluster, source, quota key and window
    client: Ints  # one for each client and broker of a scope
    cluster: Ints
    source: Ints
    quota_key: Ints
    window_ms: Ints
    minute: Ints  # of the window, from 0 on
    user: Ints
    client_id: Ints
    broker_id: Ints
    gateway: Ints
    of_limits: Ints  # key of Intervals; -1: it has none
    cadence_s: Ints
    limit_known: Bools
    limit: Floats
    entity: Ints
    bucket_user: Ints
    bucket_client_id: Ints
    area: Floats
    summed: Ints  # a column for each of SUMMED
    samples: Ints
    throttle_ms: Floats
    decided_by: Ints
    implied_sum: Floats
    implied_samples: Ints
    position: Ints  # in the table

    def slice(self, start: int, end: int) -> MinuteRows:
        return MinuteRows(*(getattr(self, name)[start:end] for name in self.__slots__))

    def counted(self, sampled: Bools) -> Bools:
        """The sampled seconds of each row that count: a row of several seconds stands at the end of its interval, where
        finer ones of its gateway may follow, and counts in none of theirs."""
        cadence_s = np.maximum(self.cadence_s, 1).astype(np.uint8)
        if not (cadence_s > 1).any():
            return sampled
        meter = joined_codes([self.client, self.minute, self.gateway])
        order = np.argsort(meter, kind="stable")
        starts = starts_of(meter[order])
        cadences_s = np.where(sampled, cadence_s[:, None], np.uint8(60))
        finest_s = np.minimum.reduceat(cadences_s[order], starts, axis=0)[run_of_row(starts, len(order))]
        return np.asarray(sampled & (cadence_s[:, None] == finest_s[np.argsort(order)]))


@dataclass(frozen=True, slots=True)
class MinuteTable:
    """All rows. What is a list in each row stays in the order of the table."""

    rows: MinuteRows
    intervals: Intervals
    clusters: Names
    sources: Names
    quota_keys: Names
    users: Names
    client_ids: Names
    entities: Names
    deciders: Names
    rates: Floats  # a row for each minute
    muted_at_ms: Ints
    muted_ms: Ints
    muted_ends: Ints  # where the lists of each row end

    def parts(self) -> Iterator[MinuteRows]:
        """Rows of whole scopes, some at a time."""
        starts = starts_of(self.rows.scope)
        if not len(starts):
            return
        ends = np.append(starts[1:], len(self.rows.scope))
        start = 0
        for end, following in zip(ends, np.append(ends[1:], np.iinfo(np.int64).max), strict=True):
            if following - start > _ROWS_AT_ONCE:
                yield self.rows.slice(start, int(end))
                start = int(end)


def table_of(minutes: pa.Table, window_s: int, limits: ClientLimits) -> MinuteTable:
    """Reads the columns. Rows that are not used any more (`replace.sql`) are left out."""
    values = [(*key, *interval) for key, several in limits.intervals.items() for interval in several]
    columns = list(zip(*values, strict=True)) or [()] * 11
    texts = {n: pa.array(columns[n], pa.string()) for n in (0, 1, 2, 3, 8, 9, 10)}
    clusters, (cluster, of_cluster) = encoded(minutes["cluster"], texts[0])
    sources, (source,) = encoded(minutes["source"])
    quota_keys, (quota_key, of_quota_key) = encoded(minutes["quota_key"], texts[1])
    users, (user, bucket_user, of_user, in_bucket_user) = encoded(
        minutes["user"], minutes["bucket_user"], texts[2], texts[9]
    )
    client_ids, (client_id, bucket_client_id, of_client_id, in_bucket_client_id) = encoded(
        minutes["client_id"], minutes["bucket_client_id"], texts[3], texts[10]
    )
    _, (gateway,) = encoded(minutes["gateway_id"])
    entities, (entity, of_entity) = encoded(minutes["matched_entity"], texts[8])
    deciders, (decided_by,) = encoded(minutes["decided_by"])
    both = [np.concatenate(pair) for pair in ((cluster, of_cluster), (quota_key, of_quota_key), (user, of_user))]
    named = joined_codes([*both, np.concatenate([client_id, of_client_id])])
    key, start, count = np.unique(named[len(cluster) :], return_index=True, return_counts=True)
    intervals = Intervals(
        *(key, start, count, np.array(columns[4], np.int64), np.array(columns[5], np.int64)),
        *(np.array([STATES.index(state) for state in columns[6]], np.int64), np.array(columns[7], np.float64)),
        *(of_entity, in_bucket_user, in_bucket_client_id),
    )
    starts_ms = seconds_since_epoch(minutes, "window_start") * 1000
    window_ms = starts_ms if window_s == 60 else starts_ms - starts_ms % (window_s * 1000)
    scope = joined_codes([cluster, source, quota_key, np.unique(window_ms, return_inverse=True)[1]])
    broker_id = numbers(minutes, "broker_id", np.int64)
    client = joined_codes([scope, user, client_id, np.unique(broker_id, return_inverse=True)[1]])
    samples, throttle_ms = numbers(minutes, "samples", np.int64), numbers(minutes, "throttle_ms", np.float64)
    summed = np.column_stack([numbers(minutes, name, np.int64) for name in SUMMED])
    minute = (starts_ms - window_ms) // 60_000
    order = np.argsort(client, kind="stable") if window_s == 60 else np.lexsort((minute, client))
    order = order[(samples[order] > 0) | (throttle_ms[order] > 0)]
    rows = (
        *(scope, client, cluster, source, quota_key, window_ms, minute, user, client_id, broker_id),
        *(gateway, _position(key, named[: len(cluster)]), numbers(minutes, "cadence_s", np.int64)),
        *(numbers(minutes, "limit_known", np.bool_), numbers(minutes, "limit", np.float64), entity, bucket_user),
        *(bucket_client_id, numbers(minutes, "area", np.float64), summed, samples),
        *(throttle_ms, decided_by, numbers(minutes, "implied_sum", np.float64)),
        numbers(minutes, "implied_samples", np.int64),
    )
    ordered: list[Any] = [*(np.asarray(column)[order] for column in rows), order]
    muted_at_ms, lengths = lists(minutes["muted_at_ms"], np.int64)
    muted_ms, _ = lists(minutes["muted_ms"], np.int64)
    return MinuteTable(
        *(MinuteRows(*ordered), intervals, clusters, sources, quota_keys, users, client_ids, entities),
        *(deciders, lists(minutes["rates"], np.float64)[0].reshape(-1, 60)),
        *(muted_at_ms, muted_ms, np.cumsum(lengths)),
    )


def _position(keys: Ints, named: Ints) -> Ints:
    """The position of each row's key, -1 where it is not there."""
    if not len(keys):
        return np.full(len(named), -1)
    at = np.minimum(np.searchsorted(keys, named), len(keys) - 1)
    return np.where(keys[at] == named, at, -1)
