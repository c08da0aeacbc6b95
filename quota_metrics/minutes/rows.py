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
from quota_metrics.verdict.window import MINUTE_MS, SUMMED

STATES = ("unknown", "none", "limited")  # the later, the nearer to a limit
_ROWS_AT_ONCE = 131_072  # of windows that are computed together
_NUMBERS_OF_LIMITS = ("from_ms", "to_ms", "limit")
# Columns of numbers, as usage_1m has them.
_NUMBERS: Mapping[str, Any] = {
    **dict.fromkeys(("broker_id", "cadence_s", "samples", "implied_samples"), np.int64),
    **dict.fromkeys(("limit", "area", "throttle_ms", "implied_sum"), np.float64),
    "limit_known": np.bool_,
}


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
    names = ("cluster", "quota_key", "user", "client_id", *LimitInterval._fields)
    values = [(*key, *interval) for key, of_client in limits.intervals.items() for interval in of_client]
    of_limits = dict(zip(names, list(zip(*values, strict=True)) or [()] * len(names), strict=True))
    texts = {name: pa.array(of_limits[name], pa.string()) for name in names if name not in _NUMBERS_OF_LIMITS}
    clusters, (cluster, of_cluster) = encoded(minutes["cluster"], texts["cluster"])
    sources, (source,) = encoded(minutes["source"])
    quota_keys, (quota_key, of_quota_key) = encoded(minutes["quota_key"], texts["quota_key"])
    users, (user, bucket_user, of_user, in_bucket_user) = encoded(
        minutes["user"], minutes["bucket_user"], texts["user"], texts["bucket_user"]
    )
    client_ids, (client_id, bucket_client_id, of_client_id, in_bucket_client_id) = encoded(
        minutes["client_id"], minutes["bucket_client_id"], texts["client_id"], texts["bucket_client_id"]
    )
    _, (gateway,) = encoded(minutes["gateway_id"])
    entities, (entity, of_entity) = encoded(minutes["matched_entity"], texts["matched_entity"])
    deciders, (decided_by,) = encoded(minutes["decided_by"])
    pairs = ((cluster, of_cluster), (quota_key, of_quota_key), (user, of_user), (client_id, of_client_id))
    named = joined_codes([np.concatenate(pair) for pair in pairs])
    key, start, count = np.unique(named[len(cluster) :], return_index=True, return_counts=True)
    intervals = Intervals(
        *(key, start, count, np.array(of_limits["from_ms"], np.int64), np.array(of_limits["to_ms"], np.int64)),
        np.array([STATES.index(state) for state in of_limits["state"]], np.int64),
        *(np.array(of_limits["limit"], np.float64), of_entity, in_bucket_user, in_bucket_client_id),
    )
    starts_ms = seconds_since_epoch(minutes, "window_start") * 1000
    window_ms = starts_ms if window_s == 60 else starts_ms - starts_ms % (window_s * 1000)
    scope = joined_codes([cluster, source, quota_key, np.unique(window_ms, return_inverse=True)[1]])
    plain = {name: numbers(minutes, name, kind) for name, kind in _NUMBERS.items()}
    client = joined_codes([scope, user, client_id, np.unique(plain["broker_id"], return_inverse=True)[1]])
    columns = plain | {
        "scope": scope, "client": client, "cluster": cluster, "source": source, "quota_key": quota_key,
        "window_ms": window_ms, "minute": (starts_ms - window_ms) // MINUTE_MS, "user": user, "client_id": client_id,
        "gateway": gateway, "of_limits": _position(key, named[: len(cluster)]), "entity": entity,
        "bucket_user": bucket_user, "bucket_client_id": bucket_client_id, "decided_by": decided_by,
        "summed": np.column_stack([numbers(minutes, name, np.int64) for name in SUMMED]),
    }  # fmt: skip
    order = np.argsort(client, kind="stable") if window_s == 60 else np.lexsort((columns["minute"], client))
    order = order[(plain["samples"][order] > 0) | (plain["throttle_ms"][order] > 0)]
    rows = MinuteRows(**{name: np.asarray(column)[order] for name, column in columns.items()}, position=order)
    muted_at_ms, lengths = lists(minutes["muted_at_ms"], np.int64)
    muted_ms, _ = lists(minutes["muted_ms"], np.int64)
    return MinuteTable(
        *(rows, intervals, clusters, sources, quota_keys, users, client_ids, entities),
        *(deciders, lists(minutes["rates"], np.float64)[0].reshape(-1, 60)),
        *(muted_at_ms, muted_ms, np.cumsum(lengths)),
    )


def _position(keys: Ints, named: Ints) -> Ints:
    """The position of each row's key, -1 where it is not there."""
    if not len(keys):
        return np.full(len(named), -1)
    at = np.minimum(np.searchsorted(keys, named), len(keys) - 1)
    return np.where(keys[at] == named, at, -1)
