"""What holds when rows of a client, or of the clients of a bucket, know several limits.

The limit of a second comes from the rows of that second. A second without such a row has the limit of the second
before it, or else of the next second that has one. The rows of a second may disagree, as those of two gateways do while
a change reaches them. Then the limit that appeared last counts, and if neither appeared later, the lower one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quota_metrics.minutes.columns import Bools, Floats, Ints, joined_codes, run_of_row, starts_of

P95 = 0.95


class Claims(NamedTuple):
    """Quotas that are known of clients: by rows, or by an interval of seconds."""

    client: Ints  # position; claims are in its order
    state: Ints
    limit: Floats  # -1: none
    entity: Ints
    bucket_user: Ints
    bucket_client_id: Ints
    row: Ints  # that knows it; -1: none
    from_s: Ints
    to_s: Ints

    def take(self, positions: Ints | Bools) -> Claims:
        columns: list[Any] = [column[positions] for column in self]
        return Claims(*columns)


class Parts(NamedTuple):
    """Per bucket the limit that counts, its entity, and mean and p95 of its seconds."""

    limit: Floats
    entity: Ints
    mean: Floats
    p95: Floats


def split_clients(claims: Claims, place: Ints, seen: Bools, elapsed_s: Ints) -> tuple[Ints, Ints, Bools]:
    """Clients whose bucket (`place`) changes within a window: client, bucket, and the seconds in which the client
    belongs to it. `seen`: the seconds in which a claim is known."""
    limit = np.unique(claims.limit, return_inverse=True)[1]
    first, seen = _merged(joined_codes([claims.client, place, limit, claims.entity]), seen)
    claims, place, elapsed_s = claims.take(first), place[first], elapsed_s[first]
    by_name = (claims.bucket_client_id, claims.bucket_user, claims.entity)
    order = np.lexsort((*by_name, *_newness(seen, claims.limit), claims.client))
    client, place, seen, elapsed_s = claims.client[order], place[order], seen[order], elapsed_s[order]
    starts = starts_of(client)
    place_at = place[starts[:, None] + _in_force(seen, starts)]
    pairs = np.unique(joined_codes([run_of_row(starts, len(client)), place]), return_index=True)[1]
    run = run_of_row(starts, len(client))[pairs]
    held = place_at[run] == place[pairs][:, None]
    is_ever = (held & (np.arange(seen.shape[1]) < elapsed_s[pairs][:, None])).any(axis=1)
    return client[pairs][is_ever], place[pairs][is_ever], held[is_ever]


def fullest_parts(claims: Claims, bucket: Ints, seen: Bools, rates: Floats, counted: Bools) -> Parts:
    """Where the limit of a bucket changes within a window: the part of the window in which it came closest to the limit
    then in force. `bucket`: position in `rates` and `counted`, of each claim; each bucket has one."""
    limit_code = np.unique(claims.limit, return_inverse=True)[1]
    order = np.lexsort((claims.entity, limit_code, bucket))  # the lowest entity of a limit counts
    key = joined_codes([bucket[order], limit_code[order]])
    first, seen = _merged(key, seen[order])
    limit, entity, bucket = claims.limit[order][first], claims.entity[order][first], bucket[order][first]
    order = np.lexsort((*_newness(seen, limit), bucket))
    limit, entity, bucket, seen = limit[order], entity[order], bucket[order], seen[order]
    starts = starts_of(bucket)
    number = np.arange(len(bucket)) - starts[bucket]
    of_limit = (_in_force(seen, starts)[bucket] == number[:, None]) & counted[bucket]
    seconds = of_limit.sum(axis=1)
    mean = np.where(of_limit, rates[bucket], 0.0).sum(axis=1) / np.maximum(seconds, 1)
    p95 = percentiles(rates[bucket], of_limit, seconds)
    order = np.lexsort((limit, -fullness(limit, np.maximum(mean, p95)), seconds == 0, bucket))
    best = order[starts]
    return Parts(limit[best], entity[best], mean[best], p95[best])


def fullness(limit: Floats, rate: Floats) -> npt.NDArray[np.float32]:
    """Share of the limit, to seven digits: in what order rates were added decides nothing. Any rate exceeds a limit
    of 0."""
    with np.errstate(over="ignore"):
        share = np.divide(rate, limit, out=np.zeros_like(rate), where=limit > 0).astype(np.float32)
    return np.where((limit == 0) & (rate > 0), np.float32(np.inf), share)


def percentiles(rates: Floats, counted: Bools, seconds: Ints) -> Floats:
    """The 95th percentile of the rates of the counted seconds of each row; `seconds`: how many these are."""
    ordered = rates.copy() if counted.all() else np.where(counted, rates, -1.0)
    ordered.sort(axis=1)
    position = np.minimum((P95 * seconds).astype(np.int64), seconds - 1) + rates.shape[1] - seconds
    of_row = np.take_along_axis(ordered, np.minimum(position, rates.shape[1] - 1)[:, None], axis=1)[:, 0]
    return np.where(seconds > 0, of_row, 0.0)


def _newness(seen: Bools, limit: Floats) -> tuple[Floats, Ints, Ints]:
    """Keys of lexsort, the most important last: when a limit came up, when it was seen last, how strict it is."""
    some = seen.any(axis=1)
    first = np.where(some, seen.argmax(axis=1) + 1, 0)
    last = np.where(some, seen.shape[1] - seen[:, ::-1].argmax(axis=1), 0)
    return np.where(limit < 0, -np.inf, -limit), last, first


def _merged(key: Ints, seen: Bools) -> tuple[Ints, Bools]:
    """The first position of each key, and the seconds of all its rows."""
    order = np.argsort(key, kind="stable")
    starts = starts_of(key[order])
    return order[starts], np.logical_or.reduceat(seen[order], starts, axis=0)


def _in_force(seen: Bools, starts: Ints) -> Ints:
    """Per run and second the number of the row in force; rows of a run are ordered, the newer the later."""
    rows = len(seen)
    number = np.arange(rows) - starts[run_of_row(starts, rows)] + 1
    held = np.maximum.reduceat(seen * number[:, None], starts, axis=0)
    held = _filled(_filled(held)[:, ::-1])[:, ::-1]
    return np.asarray(np.where(held == 0, np.diff(starts, append=rows)[:, None], held) - 1)


def _filled(held: Ints) -> Ints:
    """Seconds without a number have the last one before them."""
    last = np.maximum.accumulate(np.where(held > 0, np.arange(held.shape[1]), 0), axis=1)
    return np.take_along_axis(held, last, axis=1)
