"""Divides slices that are too large although they have a single step of time: by intervals of clients.

All members of a bucket must be in one slice, because their rates are summed per second. So boundaries are between
clients if each bucket has one client, between users if each has one user, and between client-ids if each has one
client-id. If some buckets have several users and some several client-ids, a slice stays whole. The first two follow the
sorting key of quota_usage and usage_1m (user, client_id), so each slice reads its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.slices import SLICE_ROWS
from spark_jobs.clickhouse.usage_query import OF_KEY
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS

_RAW = f"""headroom.quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {THROTTLE_LOOKBACK_MS})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND {OF_KEY}"""
_STORED = f"""headroom.usage_1m
WHERE window_start >= toDateTime(intDiv({{from_ms:Int64}}, 1000))
  AND window_start < toDateTime(intDiv({{to_ms:Int64}}, 1000)) AND {OF_KEY}"""
_RESOLVED = """headroom.quota_client_limits
WHERE run = {run:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String} AND state = 'limited'"""

# Whether buckets have several users, and several client-ids. Hashes take less memory than names.
_SHARED = """
SELECT max(first_user != last_user) AS by_users, max(first_client_id != last_client_id) AS by_client_ids
FROM (
    SELECT min(cityHash64(user)) AS first_user, max(cityHash64(user)) AS last_user,
           min(cityHash64(client_id)) AS first_client_id, max(cityHash64(client_id)) AS last_client_id
    FROM {rows}
    GROUP BY cityHash64(bucket_user, bucket_client_id)
)"""

# Some clients, chosen by their hash, and their weight. A name that is no UTF-8 cannot be a parameter, so it is no
# boundary.
_NAMES = """
SELECT toString({user}) AS first, toString({client_id}) AS second,
       greatest({samples}, intDiv({{window_ms:Int64}}, 1000) * uniq(user, client_id, {window})) AS weight
FROM {rows} AND cityHash64(user, client_id) % {{one_of:UInt32}} = 0
GROUP BY first, second
HAVING isValidUTF8(first) AND isValidUTF8(second)
ORDER BY first, second"""
_CHOSEN = 20_000  # clients from which boundaries are chosen: slices differ by a per cent or two
_LEAST_WEIGHT = 60  # of a client, about

_EVERYONE = {"from_user": "", "from_client_id": "", "to_user": "", "to_client_id": "", "is_last": 1}
_EVERY_CLIENT_ID = {"least_client_id": "", "below_client_id": "", "is_last_client_id": 1}


class _Shared(NamedTuple):
    """Who shares a bucket."""

    by_users: bool
    by_client_ids: bool


_NOBODY = _Shared(by_users=False, by_client_ids=False)


def divided(
    clickhouse: ClickHouse,
    pieces: Iterable[Mapping[str, Any]],
    *,
    stored: bool,
    whole_buckets: bool = True,
    most: int = SLICE_ROWS,
) -> Iterator[dict[str, Any]]:
    """The query parameters of each slice, those of slices of more weight than `most` with an interval of clients
    (`usage_query.OF_CLIENTS`). `pieces` have `source`, too, and `run` if limits of their rows were resolved. `stored`:
    of usage_1m. Without `whole_buckets` the members of a bucket may be apart. Raises SourceError."""
    for piece in pieces:
        number = -(-piece["weight"] // most)
        shared = _shared(clickhouse, piece, stored=stored) if number > 1 and whole_buckets else _NOBODY
        if number > 1 and not (shared.by_users and shared.by_client_ids):
            starts = _starts(_names(clickhouse, piece, shared, stored=stored), number)
            yield from ({**piece, **interval} for interval in _intervals(starts, by_client_id=shared.by_users))
        else:
            yield dict(piece)


def is_divided(piece: Mapping[str, Any]) -> bool:
    """Whether the slice has a part of the clients."""
    return "is_last" in piece


def _intervals(starts: Sequence[tuple[str, str]], *, by_client_id: bool) -> Iterator[dict[str, Any]]:
    for start, end in zip([("", ""), *starts], [*starts, None], strict=True):
        until, is_last = end or ("", ""), int(end is None)
        if by_client_id:
            some = {"least_client_id": start[1], "below_client_id": until[1], "is_last_client_id": is_last}
            yield {**_EVERYONE, **some}
        else:
            begin = {"from_user": start[0], "from_client_id": start[1]}
            yield {**_EVERY_CLIENT_ID, **begin, "to_user": until[0], "to_client_id": until[1], "is_last": is_last}


def _starts(names: Sequence[Mapping[str, Any]], number: int) -> list[tuple[str, str]]:
    """Where slices of about the same weight begin, without the first. `names` are ordered."""
    each = sum(name["weight"] for name in names) / number
    starts, filled = [], 0
    for name in names:
        if filled >= each:
            starts.append((name["first"], name["second"]))
            filled = 0
        filled += name["weight"]
    return starts


def _names(clickhouse: ClickHouse, piece: Mapping[str, Any], shared: _Shared, *, stored: bool) -> list[dict[str, Any]]:
    sql = _NAMES.format(
        user="''" if shared.by_users else "user",
        client_id="''" if shared.by_client_ids else "client_id",
        samples="sum(samples)" if stored else "count()",
        window="window_start" if stored else "intDiv(toUnixTimestamp64Milli(ts), {window_ms:Int64})",
        rows=_STORED if stored else _RAW,
    )
    one_of = max(piece["weight"] // (_CHOSEN * _LEAST_WEIGHT), 1)
    return clickhouse.rows(sql, {**piece, "one_of": one_of})


def _shared(clickhouse: ClickHouse, piece: Mapping[str, Any], *, stored: bool) -> _Shared:
    limited = f"{_STORED} AND limit >= 0" if stored else f"{_RAW} AND isNotNull(limit)"
    every = [f"{limited} AND limit_known"] + ([_RESOLVED] if "run" in piece else [])
    found = [clickhouse.rows(_SHARED.format(rows=rows), piece)[0] for rows in every]
    return _Shared(*(any(row[name] for row in found) for name in _Shared._fields))
