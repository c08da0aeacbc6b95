"""Windows of usage, made of rows of usage_1m: one row per client, broker and window.

1. rates: per client the sum of its rows, second by second, over gateways and whatever quota they know; of one gateway
   that of the finest interval;
2. members: per client the buckets (metric tags) to which it belongs in the window, as its rows know them, else as
   ClientLimits says; nearly always one for the whole window. `exact_rules` says what holds otherwise;
3. buckets: the sum of all clients that share one, second by second, the limit that counts, who takes most.

Rates are summed per second before a mean or a quantile is taken, so clients need not run side by side and gateways need
not see the same seconds. A limit that does not decide is none (`state` unknown, `limit` None, the rule's number in
`rule_limit`): rows name a class that decides (`decided_by`), or the throttle times imply less than half of it.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quota_metrics.minutes.columns import Bools, Floats, Ints, joined_codes, per_run, run_of_row, starts_of
from quota_metrics.minutes.exact_rules import Claims, fullest_parts, fullness, percentiles, split_clients
from quota_metrics.minutes.rows import STATES, ClientLimits, LimitInterval, MinuteRows, MinuteTable, table_of
from quota_metrics.verdict.thresholds import UNEXPLAINED
from quota_metrics.verdict.window import SUMMED, Window

__all__ = ["ClientLimits", "LimitInterval", "window_rows", "windows_of"]

_NO_LIMITS: Final = ClientLimits({})
_UNKNOWN, _NONE, _LIMITED = range(3)  # of STATES
_MADE_AT_ONCE: Final = 512  # values of windows


class _ClientWindows(NamedTuple):
    """One client at one broker in one window, in the order of rows."""

    first: Ints  # row
    of_row: Ints
    rates: Floats
    sampled: Bools
    area: Floats
    covered: Bools  # rows have intervals
    elapsed_s: Ints


class _Members(NamedTuple):
    """Clients in their buckets, in the order of `place`."""

    client: Ints
    place: Ints
    held: Bools | None  # the seconds in which the client belongs to the bucket; None: all do in all
    rates: Floats
    sampled: Bools
    area: Floats
    covered: Bools
    elapsed_s: Ints


class _Figures(NamedTuple):
    mean: Floats
    p95: Floats


def windows_of(minutes: pa.Table, window_s: int, to_ms: int, limits: ClientLimits | None = None) -> pa.Table:
    """The windows of `window_s` seconds, a multiple of 60, of rows of usage_1m: the fields of Window as columns.

    Rows may be of any number of clusters, sources, quota keys and windows, in any order; a window has all of its rows.
    Windows of a minute begin with the rows' minutes, longer ones on the grid of their length. `to_ms`: the end of what
    is known. Windows of a cluster, source, quota key and time are adjacent, and in these the brokers of a client.
    """
    table = table_of(minutes, window_s, limits or _NO_LIMITS)
    assigned = limits is not None and limits.assigned
    parts = [
        _Computation(table, rows, window_s, to_ms, assigned=assigned).columns()
        for rows in (table.parts() if minutes.num_rows else ())
    ]
    return _table(table, parts)


def window_rows(table: pa.Table) -> Iterator[Window]:
    """The rows of `windows_of` as values, a few at a time: what was made for some is used again for the next."""
    columns = [_values(table.column(name).combine_chunks()) for name in Window._fields]
    for start in range(0, table.num_rows, _MADE_AT_ONCE):
        parts = (values[start : start + _MADE_AT_ONCE].tolist() for values in columns)
        yield from map(Window._make, zip(*parts, strict=True))


def _values(column: Any) -> Any:
    """An array of numpy; where a value is absent, it is None."""
    if pa.types.is_dictionary(column.type):
        return np.array(column.dictionary.to_pylist(), np.object_)[column.indices.to_numpy()]
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count:
        values = values.astype(np.object_)
        values[column.is_null().to_numpy(zero_copy_only=False)] = None
    return values


class _Computation:
    """Windows of some scopes. Arrays: `per client` one element for each client, broker and window."""

    def __init__(self, table: MinuteTable, rows: MinuteRows, window_s: int, to_ms: int, *, assigned: bool) -> None:
        self._table, self._rows, self._window_s, self._to_ms, self._assigned = table, rows, window_s, to_ms, assigned
        self._row_rates = self._table.rates[rows.position]
        for cadence in np.unique(rows.cadence_s[rows.cadence_s > 1]):
            alike = rows.cadence_s == cadence
            self._row_rates[alike] = self._row_rates[alike][:, np.arange(60) // cadence * cadence]
        self._row_sampled = np.isfinite(self._row_rates)

    def columns(self) -> dict[str, Any]:
        """Fields of Window; texts as codes, no limit as -1, no implied limit as 0."""
        clients = self._clients()
        claims = self._claims(clients)
        members, claims, claim_place = self._members(clients, claims)
        return self._windows(clients, members, claims, claim_place)

    def _clients(self) -> _ClientWindows:
        rows, sampled = self._rows, self._row_sampled
        counted = rows.counted(sampled)
        rates = self._row_rates if counted.all() else np.where(counted, self._row_rates, 0.0)
        first = starts_of(rows.client)
        of_row = run_of_row(first, len(rows.client))
        area = rows.area
        if not rows.cadence_s.all():
            area = np.where(rows.cadence_s > 0, area, 1000 * rates.sum(axis=1))
        slots = of_row * (self._window_s // 60) + rows.minute
        starts = starts_of(slots)
        rates, sampled = per_run(np.add, rates, starts), per_run(np.logical_or, sampled, starts)
        if len(starts) < len(first) * self._window_s // 60:
            rates, sampled = self._placed(rates, slots[starts], first), self._placed(sampled, slots[starts], first)
        remaining_ms = np.minimum(self._window_s * 1000, self._to_ms - rows.window_ms[first])
        return _ClientWindows(
            *(first, of_row, rates.reshape(-1, self._window_s), sampled.reshape(-1, self._window_s)),
            *(per_run(np.add, area, first), per_run(np.maximum, rows.cadence_s, first) > 0),
            (remaining_ms + 999) // 1000,
        )

    def _placed(self, values: Any, slots: Ints, first: Ints) -> Any:
        """Minutes at their place in windows, of which some lack rows."""
        placed = np.zeros((len(first) * self._window_s // 60, 60), values.dtype)
        placed[slots] = values
        return placed

    def _claims(self, clients: _ClientWindows) -> Claims:
        """What is known of each client's quota: by rows with samples, else by rows that only mute; else by limits that
        were resolved; else that it is unknown."""
        rows, first = self._rows, clients.first
        has_limit = np.zeros(len(rows.client), np.bool_) if self._assigned else rows.limit_known
        by_samples = has_limit & (rows.samples > 0)
        has_samples = per_run(np.logical_or, by_samples, first)
        has_limit = by_samples | (has_limit & ~has_samples[clients.of_row])
        row = np.flatnonzero(has_limit)
        is_none = rows.limit[row] < 0
        zeros = np.zeros(len(row), np.int64)
        claims = Claims(
            *(clients.of_row[row], np.where(is_none, _NONE, _LIMITED), rows.limit[row], rows.entity[row]),
            np.where(is_none, rows.user[row], rows.bucket_user[row]),
            np.where(is_none, rows.client_id[row], rows.bucket_client_id[row]),
            *(row, zeros, zeros),
        )
        without = np.flatnonzero(~per_run(np.logical_or, has_limit, first))
        if not len(without):
            return claims
        columns = zip(claims, *self._resolved(without, clients), strict=True)
        claims = Claims(*map(np.concatenate, columns))
        return claims.take(np.argsort(claims.client, kind="stable"))

    def _resolved(self, client: Ints, clients: _ClientWindows) -> list[Claims]:
        """Claims of clients whose rows know nothing."""
        rows, intervals = self._rows, self._table.intervals
        of_limits = rows.of_limits[clients.first[client]]
        owner, of_limits = client[of_limits >= 0], of_limits[of_limits >= 0]
        count = intervals.count[of_limits]
        at = np.repeat(intervals.start[of_limits], count)
        at += np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
        owner = np.repeat(owner, count)
        window_ms = rows.window_ms[clients.first[owner]]
        end_ms = window_ms + clients.elapsed_s[owner] * 1000
        overlaps = (intervals.from_ms[at] < end_ms) & (intervals.to_ms[at] > window_ms)
        owner, at, window_ms = owner[overlaps], at[overlaps], window_ms[overlaps]
        from_s = np.clip(-(-(intervals.from_ms[at] - window_ms) // 1000), 0, self._window_s)
        to_s = np.clip(-(-(intervals.to_ms[at] - window_ms) // 1000), 0, self._window_s)
        resolved = Claims(
            *(owner, intervals.state[at], intervals.limit[at], intervals.entity[at], intervals.bucket_user[at]),
            *(intervals.bucket_client_id[at], np.full(len(at), -1), from_s, to_s),
        )
        left = np.setdiff1d(client, owner)
        first, zeros = clients.first[left], np.zeros(len(left), np.int64)
        unknown = Claims(
            *(left, np.full(len(left), _UNKNOWN), np.full(len(left), -1.0), zeros, rows.user[first]),
            *(rows.client_id[first], np.full(len(left), -1), zeros, zeros),
        )
        return [resolved, unknown]

    def _seen(self, claims: Claims) -> Bools:
        """The seconds in which each claim is known."""
        second = np.arange(self._window_s)
        seen = (second >= claims.from_s[:, None]) & (second < claims.to_s[:, None])
        of_rows = np.flatnonzero(claims.row >= 0)
        row = claims.row[of_rows]
        seen.reshape(len(seen), -1, 60)[of_rows, self._rows.minute[row]] = self._row_sampled[row]
        return seen

    def _members(self, clients: _ClientWindows, claims: Claims) -> tuple[_Members, Claims, Ints]:
        """Members of buckets, the claims that count, and the bucket of each of these."""
        rows, row = self._rows, clients.first[claims.client]
        broker = np.unique(rows.broker_id, return_inverse=True)[1][row]
        scope = rows.scope[row] - rows.scope[0]
        place = joined_codes([scope, broker, claims.state, claims.bucket_user, claims.bucket_client_id])
        starts = starts_of(claims.client)
        is_split = per_run(np.minimum, place, starts) != per_run(np.maximum, place, starts)
        client, held = np.arange(len(starts)), None
        if is_split.any():
            of_split = is_split[claims.client]
            split = claims.take(of_split)
            elapsed_s = clients.elapsed_s[split.client]
            split_client, split_place, split_held = split_clients(split, place[of_split], self._seen(split), elapsed_s)
            client = np.concatenate([client[~is_split], split_client])
            of_member = np.concatenate([place[starts][~is_split], split_place])
            held = np.ones((len(client), self._window_s), np.bool_)
            held[np.count_nonzero(~is_split) :] = split_held
            names = np.unique(np.concatenate([place, of_member]), return_inverse=True)[1]
            place, of_member = names[: len(place)], names[len(place) :]
            pairs = joined_codes([np.append(claims.client, client), np.append(place, of_member)])
            counts = np.isin(pairs[: len(place)], pairs[len(place) :])
            claims, place = claims.take(counts), place[counts]
        else:
            of_member = place[starts]
        order = np.argsort(of_member, kind="stable")
        client, of_member = client[order], of_member[order]
        rates, sampled, area = _taken(clients.rates, client), _taken(clients.sampled, client), clients.area[client]
        covered, elapsed_s = clients.covered[client], clients.elapsed_s[client]
        if held is not None:
            held = held[order]
            rates, sampled = rates * held, sampled & held
            within = np.arange(self._window_s) < elapsed_s[:, None]
            area = np.where(held.all(axis=1), area, 1000 * np.where(within, rates, 0.0).sum(axis=1))
        return _Members(client, of_member, held, rates, sampled, area, covered, elapsed_s), claims, place

    def _windows(self, clients: _ClientWindows, members: _Members, claims: Claims, claim_place: Ints) -> dict[str, Any]:
        starts = starts_of(members.place)
        bucket = run_of_row(starts, len(members.place))
        own, sums = _figures(members), _sums(members, starts)
        group = own if sums is members else _figures(sums)
        size = np.diff(starts, append=len(bucket))
        is_alone = size == 1
        order = np.argsort(claim_place, kind="stable")
        parts = _Figures(group.mean, np.where(is_alone, own.p95[starts], group.p95))
        limit, entity, mean, p95 = self._parts(claims, claim_place, order, sums, parts)
        of_bucket = claims.take(order[starts_of(claim_place[order])])
        rows, first = self._rows, clients.first[members.client]
        rank = np.arange(len(bucket))  # all places of buckets, who takes most first
        if sums is not members:
            rank = np.lexsort((rows.client_id[first], rows.user[first], -own.mean, bucket))
        usage_rank = np.empty(len(rank), np.int64)
        usage_rank[rank] = np.arange(len(rank)) - starts[bucket] + 1
        top, second = rank[starts], rank[np.minimum(starts + 1, len(rank) - 1)]
        has_greediest = is_alone | (own.mean[top] > own.mean[second])
        columns = {
            **self._of_clients(clients, members.client),
            "state": of_bucket.state[bucket], "rule_limit": limit[bucket], "matched_entity": entity[bucket],
            "bucket_user": of_bucket.bucket_user[bucket], "bucket_client_id": of_bucket.bucket_client_id[bucket],
            "usage": own.mean, "usage_p95": own.p95, "usage_max": members.rates.max(axis=1),
            "group_usage": mean[bucket], "group_p95": p95[bucket], "group_last": _newest(sums)[bucket],
            "shared_with": size[bucket] - 1,
            "greediest_user": np.where(has_greediest, rows.user[first[top]], 0)[bucket],
            "greediest_client_id": np.where(has_greediest, rows.client_id[first[top]], 0)[bucket],
            "greediest_usage": np.where(has_greediest, own.mean[top], 0.0)[bucket],
            "members_usage": per_run(np.add, own.mean, starts)[bucket], "usage_rank": usage_rank,
        }  # fmt: skip
        order = np.argsort(members.client, kind="stable")
        if len(order) > len(clients.first):  # a client whose bucket changes is shown in the one nearest to its limit
            full = fullness(columns["rule_limit"], np.maximum(columns["group_usage"], columns["group_p95"]))
            names = (-columns["bucket_client_id"], -columns["bucket_user"])
            order = np.lexsort((*names, -full, -columns["state"], members.client))
            order = order[starts_of(members.client[order])]
        columns = {name: _taken(values, order) for name, values in columns.items()}
        rule, implied = columns["rule_limit"], columns["implied_limit"]
        is_unexplained = (columns["decided_by"] != 0) | ((rule >= 0) & (implied > 0) & (implied < UNEXPLAINED * rule))
        columns["state"] = np.where(is_unexplained, _UNKNOWN, columns["state"])
        columns["limit"] = np.where(is_unexplained, -1.0, rule)
        return columns

    def _parts(self, claims: Claims, place: Ints, order: Ints, sums: _Members, group: _Figures) -> Any:
        """Per bucket the limit that counts, its entity, and mean and p95 of its seconds. `order` of claims."""
        starts = starts_of(place[order])
        limit = per_run(np.minimum, claims.limit[order], starts)
        entity = per_run(np.minimum, claims.entity[order], starts)
        mean, p95 = group
        changing = np.flatnonzero(limit != per_run(np.maximum, claims.limit[order], starts))
        if not len(changing):
            return limit, entity, mean, p95
        bucket = np.empty(len(place), np.int64)
        bucket[order] = run_of_row(starts, len(place))
        number = np.full(len(starts), -1)
        number[changing] = np.arange(len(changing))
        of_changing = number[bucket] >= 0
        counted = _counted(sums)[changing]
        claims, bucket = claims.take(of_changing), number[bucket][of_changing]
        parts = fullest_parts(claims, bucket, self._seen(claims), sums.rates[changing], counted)
        limit, entity, mean, p95 = limit.copy(), entity.copy(), mean.copy(), p95.copy()
        limit[changing], entity[changing], mean[changing], p95[changing] = parts
        return limit, entity, mean, p95

    def _of_clients(self, clients: _ClientWindows, client: Ints) -> dict[str, Any]:
        """What does not depend on the bucket."""
        rows, first = self._rows, clients.first
        implied = per_run(np.add, rows.implied_sum, first)
        samples = per_run(np.add, rows.implied_samples, first)
        columns = {
            "cluster": rows.cluster[first], "source": rows.source[first], "quota_key": rows.quota_key[first],
            "user": rows.user[first], "client_id": rows.client_id[first], "broker_id": rows.broker_id[first],
            "window_start_ms": rows.window_ms[first], "elapsed_s": clients.elapsed_s,
            "decided_by": per_run(np.maximum, rows.decided_by, first),
            "implied_limit": np.divide(implied, samples, out=np.zeros_like(implied), where=samples > 0),
            "samples": per_run(np.add, rows.samples, first),
            "throttle_ms": per_run(np.maximum, rows.throttle_ms, first), "muted_ms": self._muted_ms(clients),
        }  # fmt: skip
        columns |= zip(SUMMED, per_run(np.add, rows.summed, first).T, strict=True)
        return {name: _taken(values, client) for name, values in columns.items()}

    def _muted_ms(self, clients: _ClientWindows) -> Floats:
        rows, table, count = self._rows, self._table, len(clients.first)
        row, at = _elements(table.muted_ends, rows.position)
        cadence_s, begin_ms = rows.cadence_s[row], rows.minute[row] * 60_000
        at_ms, ms, is_bare = table.muted_at_ms[at], table.muted_ms[at], cadence_s == 0
        remaining_ms = np.minimum(60_000, self._to_ms - rows.window_ms[row] - begin_ms)
        from_ms, to_ms = begin_ms + np.maximum(at_ms, 0), begin_ms + np.minimum(at_ms + ms, remaining_ms)
        spans = _covered_ms(clients.of_row[row[is_bare]], from_ms[is_bare], to_ms[is_bare], count)
        row, ms, cadence_s = row[~is_bare], ms[~is_bare], cadence_s[~is_bare]
        slot = at_ms[~is_bare] // 1000 // cadence_s * cadence_s
        width = np.minimum(slot + cadence_s, 60) - slot
        first_s = slot + rows.minute[row] * 60
        second = np.repeat(first_s - np.cumsum(width) + width, width) + np.arange(width.sum())
        held_row, held_ms = np.repeat(row, width), np.repeat(ms / width, width)
        held = _held_ms(clients.of_row[held_row], held_row, second, held_ms, count)
        window_ms = rows.window_ms[clients.first]
        return np.minimum(spans + np.round(held), np.minimum(self._window_s * 1000, self._to_ms - window_ms))


def _covered_ms(client: Ints, from_ms: Ints, to_ms: Ints, clients: int) -> Floats:
    """The length of the union of each client's spans; times are relative to the window."""
    if not len(client):
        return np.zeros(clients)
    order = np.lexsort((from_ms, client))
    client, from_ms, to_ms = client[order], from_ms[order], to_ms[order]
    beyond = int(to_ms.max()) + 1  # clients one after another on one line
    begin, end = client * beyond + from_ms, client * beyond + to_ms
    reached = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    lengths = np.maximum(end - np.maximum(begin, reached), 0)
    return np.bincount(client, lengths, clients).astype(np.float64)


def _held_ms(client: Ints, row: Ints, second: Ints, ms: Floats, clients: int) -> Floats:
    """Per client the sum over seconds of the longest time of a row. `second` in the window; several are added."""
    if not len(client):
        return np.zeros(clients)
    order = np.lexsort((row, second, client))
    client, row, second, ms = client[order], row[order], second[order], ms[order]
    width = int(second.max()) + 1
    starts = starts_of((client * width + second) * (int(row.max()) + 1) + row)
    of_row = np.add.reduceat(ms, starts)
    client, second = client[starts], second[starts]
    starts = starts_of(client * width + second)
    return np.bincount(client[starts], np.maximum.reduceat(of_row, starts), clients).astype(np.float64)


def _elements(ends: Ints, positions: Ints) -> tuple[Ints, Ints]:
    """The elements of the lists of rows: the number of the row, the position among all elements."""
    if not len(ends) or not ends[-1]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begins = np.concatenate([[0], ends[:-1]])[positions]
    lengths = ends[positions] - begins
    row = np.repeat(np.arange(len(positions)), lengths)
    return row, np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(len(row))


def _taken(values: Any, positions: Ints) -> Any:
    """Without a copy where positions are those of all elements in order."""
    in_order = len(positions) == len(values) and bool((positions == np.arange(len(values))).all())
    return values if in_order else values[positions]


def _sums(members: _Members, starts: Ints) -> _Members:
    if len(starts) == len(members.client):
        return members
    held = None if members.held is None else np.logical_or.reduceat(members.held, starts, axis=0)
    return _Members(
        *(members.client[starts], members.place[starts], held, np.add.reduceat(members.rates, starts, axis=0)),
        *(np.logical_or.reduceat(members.sampled, starts, axis=0), np.add.reduceat(members.area, starts)),
        *(np.logical_or.reduceat(members.covered, starts), members.elapsed_s[starts]),
    )


def _counted(members: _Members) -> Bools:
    """The seconds of a mean and of quantiles: all if rows have intervals, else sampled ones."""
    within = np.arange(members.rates.shape[1]) < members.elapsed_s[:, None]
    within = within if members.held is None else within & members.held
    return np.where(members.covered[:, None], within, members.sampled)


def _figures(members: _Members) -> _Figures:
    counted = _counted(members)
    seconds = counted.sum(axis=1)
    mean = members.area / (1000 * np.maximum(seconds, 1))
    return _Figures(mean, percentiles(members.rates, counted, seconds))


def _newest(sums: _Members) -> Floats:
    """The highest rate of the newest two seconds."""
    seconds = sums.sampled.shape[1]
    last = np.where(sums.sampled.any(axis=1), seconds - sums.sampled[:, ::-1].argmax(axis=1), 0)
    newest = np.where(sums.covered, sums.elapsed_s, last)
    first = np.maximum(newest - 1, 1) - 1
    bucket = np.arange(len(first))
    return np.asarray(np.maximum(sums.rates[bucket, first], sums.rates[bucket, first + 1]))


_TEXTS: Final = {
    "cluster": "clusters", "source": "sources", "quota_key": "quota_keys", "user": "users", "client_id": "client_ids",
    "decided_by": "deciders", "matched_entity": "entities", "bucket_user": "users", "bucket_client_id": "client_ids",
    "greediest_user": "users", "greediest_client_id": "client_ids",
}  # fmt: skip
_COUNTS: Final = ("state", "broker_id", "window_start_ms", "elapsed_s", "samples", "shared_with", "usage_rank")
_INTEGERS: Final = {*_TEXTS, *SUMMED, *_COUNTS}
_ABSENT: Final = {"limit": -1.0, "rule_limit": -1.0, "implied_limit": 0.0}  # what stands for null


def _table(table: MinuteTable, parts: list[dict[str, Any]]) -> pa.Table:
    columns: dict[str, Any] = {}
    for name in Window._fields:
        kind = np.int64 if name in _INTEGERS else np.float64
        values = np.concatenate([np.empty(0, kind), *(part[name] for part in parts)])
        if name == "state":
            columns[name] = pa.DictionaryArray.from_arrays(values.astype(np.int32), pa.array(STATES))
        elif name in _TEXTS:
            columns[name] = pa.DictionaryArray.from_arrays(values.astype(np.int32), getattr(table, _TEXTS[name]))
        elif name in _ABSENT:
            columns[name] = pa.array(values, mask=values == _ABSENT[name])
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)
