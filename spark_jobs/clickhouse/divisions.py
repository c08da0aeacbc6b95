"""Divides slices that are too large although they have a single step of time: by intervals of clients.

All members of a bucket must be in one slice, because their rates are summed per second. So boundaries are between
clients if each bucket has one client, between users if each has one user, and elsewhere a slice stays whole. Intervals
follow the sorting key of quota_usage and usage_1m (user, client_id), so each slice reads its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_jobs.clickhouse.client import ClickHouse
from spark_jobs.clickhouse.slices import SLICE_ROWS
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS

_OF_KEY = "source = {source:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String}"
_RAW = f"""headroom.quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {THROTTLE_LOOKBACK_MS})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND {_OF_KEY}"""
_STORED = f"""headroom.usage_1m
WHERE window_start >= toDateTime(intDiv({{from_ms:Int64}}, 1000))
  AND window_start < toDateTime(intDiv({{to_ms:Int64}}, 1000)) AND {_OF_KEY}"""
_RESOLVED = """headroom.quota_client_limits
WHERE run = {run:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String} AND state = 'limited'"""

# The widest bucket: _CLIENT, _USER (several clients of one user) or _SEVERAL_USERS. Hashes take less memory than names.
_WIDEST = """
SELECT max(multiIf(first_user != last_user, 2, first_client_id != last_client_id, 1, 0)) AS widest
FROM (
    SELECT min(cityHash64(user)) AS first_user, max(cityHash64(user)) AS last_user,
           min(cityHash64(client_id)) AS first_client_id, max(cityHash64(client_id)) AS last_client_id
    FROM {rows}
    GROUP BY cityHash64(bucket_user, bucket_client_id)
)"""
_CLIENT, _USER, _SEVERAL_USERS = range(3)

# Some clients, chosen by their hash, and the weight of each. A name that is no UTF-8 cannot be a parameter, so it is no
# boundary.
_CLIENTS = """
SELECT user, client_id, greatest({samples}, intDiv({{window_ms:Int64}}, 1000) * uniq({window})) AS weight
FROM {rows} AND cityHash64(user, client_id) % {{one_of:UInt32}} = 0
GROUP BY user, client_id
HAVING isValidUTF8(user) AND isValidUTF8(client_id)
ORDER BY user, client_id"""
_CHOSEN = 20_000  # clients from which boundaries are chosen: slices differ by a per cent or two
_LEAST_WEIGHT = 60  # of a client, about


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
        widest = _widest(clickhouse, piece, stored=stored) if number > 1 and whole_buckets else _CLIENT
        if number > 1 and widest != _SEVERAL_USERS:
            yield from _intervals(clickhouse, piece, number, by_user=widest == _USER, stored=stored)
        else:
            yield dict(piece)


def is_divided(piece: Mapping[str, Any]) -> bool:
    """Whether the slice has a part of the clients."""
    return "is_last" in piece


def _intervals(
    clickhouse: ClickHouse, piece: Mapping[str, Any], number: int, *, by_user: bool, stored: bool
) -> Iterator[dict[str, Any]]:
    starts = _starts(_clients(clickhouse, piece, stored=stored), number, by_user=by_user)
    for start, end in zip([("", ""), *starts], [*starts, None], strict=True):
        interval = {"from_user": start[0], "from_client_id": start[1], "is_last": int(end is None)}
        yield {**piece, **interval, "to_user": end[0] if end else "", "to_client_id": end[1] if end else ""}


def _starts(clients: Sequence[Mapping[str, Any]], number: int, *, by_user: bool) -> list[tuple[str, str]]:
    """Where slices of about the same weight begin, without the first. `clients` are ordered."""
    each = sum(client["weight"] for client in clients) / number
    starts, last, filled = [], None, 0
    for client in clients:
        start = (client["user"], "" if by_user else client["client_id"])
        if filled >= each and start != last:
            starts.append(start)
            filled = 0
        filled += client["weight"]
        last = start
    return starts


def _clients(clickhouse: ClickHouse, piece: Mapping[str, Any], *, stored: bool) -> list[dict[str, Any]]:
    sql = _CLIENTS.format(
        samples="sum(samples)" if stored else "count()",
        window="window_start" if stored else "intDiv(toUnixTimestamp64Milli(ts), {window_ms:Int64})",
        rows=_STORED if stored else _RAW,
    )
    one_of = max(piece["weight"] // (_CHOSEN * _LEAST_WEIGHT), 1)
    return clickhouse.rows(sql, {**piece, "one_of": one_of})


def _widest(clickhouse: ClickHouse, piece: Mapping[str, Any], *, stored: bool) -> int:
    limited = f"{_STORED} AND limit >= 0" if stored else f"{_RAW} AND isNotNull(limit)"
    every = [f"{limited} AND limit_known"] + ([_RESOLVED] if "run" in piece else [])
    return max(int(clickhouse.rows(_WIDEST.format(rows=rows), piece)[0]["widest"]) for rows in every)
