"""Splits a read in slices, each one Spark task and one ClickHouse query: of time, cluster, quota key and clients.

A bucket never spans clusters or quota keys, and the rates of its clients are summed per second. So a slice has complete
windows of one cluster and quota key, in total about the weight SLICE_ROWS: the number of seconds in all windows of all
clients, because memory holds an array of seconds per client and minute.

A slice that is too large although it has a single step of time is divided by intervals of clients. All members of a
bucket must be in one slice. So boundaries are between clients if each bucket has one client, between users if each has
one user, and between client-ids if each has one client-id. If some buckets have several users and some several
client-ids, a slice stays whole. The first two follow the sorting key of usage_1m (user, client_id), so each slice reads
its own rows only.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.rows import ClientLimits
from spark_jobs.clickhouse.queries import OF_MINUTES
from spark_jobs.time_range import TimeRange

SLICE_ROWS = 2_000_000  # the query of 1.8 million rows took ClickHouse 110 MiB; the limit that we keep is 256
FEWEST_ROWS = 1_500_000  # a slice within an hour reads the whole hour: fewer rows do not pay for that
_STEPS = 512  # maximum number of counting steps in a range


def step_ms(when: TimeRange) -> int:
    """Length of the steps in which rows are counted: a multiple of the window, so that there are at most about 500
    steps."""
    windows = max((when.to_ms - when.from_ms) // when.window_ms // _STEPS, 1)
    return windows * when.window_ms


def slices_of_time(counts: Iterable[Mapping[str, Any]], when: TimeRange, cores: int) -> list[dict[str, Any]]:
    """Query parameters of each slice and its `weight`, from rows of `queries.COUNTS`. Slices of a cluster and quota key
    are contiguous."""
    ordered = sorted(counts, key=itemgetter("cluster", "quota_key", "start_ms"))
    total = sum(count["weight"] for count in ordered)
    most = min(SLICE_ROWS, max(total // (2 * cores), FEWEST_ROWS))
    slices: list[dict[str, Any]] = []
    for (cluster, quota_key), group in groupby(ordered, key=itemgetter("cluster", "quota_key")):
        key = {"cluster": cluster, "quota_key": quota_key, "window_ms": when.window_ms}
        slices += [{**key, **bounds} for bounds in _bounds(list(group), when, most)]
    return slices


def _bounds(counts: Sequence[Mapping[str, Any]], when: TimeRange, most: int) -> Iterator[Mapping[str, int]]:
    # Steps are aligned to the epoch and may begin before the range.
    starts = [max(counts[0]["start_ms"], when.from_ms)]
    weights = [0]
    for count in counts:
        if weights[-1] and weights[-1] + count["weight"] > most and count["start_ms"] > starts[-1]:
            starts.append(count["start_ms"])
            weights.append(0)
        weights[-1] += count["weight"]
    end = min(counts[-1]["start_ms"] + step_ms(when), when.to_ms)
    for start, following, weight in zip(starts, [*starts[1:], end], weights, strict=True):
        if start < following:
            yield {"from_ms": start, "to_ms": following, "weight": weight}


_OF_SLICE = f"{OF_MINUTES} AND cluster = {{cluster:String}} AND quota_key = {{quota_key:String}}"

# The minutes of one slice: a range of time of one key, and of its clients an interval of the sorting key, which prunes
# what is read, and one of client-ids. Both may be open.
SLICE_OF_MINUTES = f"""
SELECT * EXCEPT (newest, computed_at)
FROM usage_1m FINAL
WHERE {_OF_SLICE} AND (samples > 0 OR throttle_ms > 0)
  AND (user > {{from_user:String}} OR (user = {{from_user:String}} AND client_id >= {{from_client_id:String}}))
  AND ({{is_last:UInt8}} OR user < {{to_user:String}}
       OR (user = {{to_user:String}} AND client_id < {{to_client_id:String}}))
  AND client_id >= {{least_client_id:String}}
  AND ({{is_last_client_id:UInt8}} OR client_id < {{below_client_id:String}})"""  # noqa: S608 - made of our own words
_EVERYONE = {"from_user": "", "from_client_id": "", "to_user": "", "to_client_id": "", "is_last": 1}
_EVERY_CLIENT_ID = {"least_client_id": "", "below_client_id": "", "is_last_client_id": 1}

# Whether buckets have several users, and several client-ids. Hashes take less memory than names.
_SHARED = f"""
SELECT max(first_user != last_user) AS by_users, max(first_client_id != last_client_id) AS by_client_ids
FROM (
    SELECT min(cityHash64(user)) AS first_user, max(cityHash64(user)) AS last_user,
           min(cityHash64(client_id)) AS first_client_id, max(cityHash64(client_id)) AS last_client_id
    FROM usage_1m WHERE {_OF_SLICE} AND limit >= 0 AND limit_known
    GROUP BY cityHash64(bucket_user, bucket_client_id)
)"""  # noqa: S608 - made of our own words

# Some clients, chosen by their hash, and their weight. A name that is no UTF-8 cannot be a parameter, so it is no
# boundary.
_NAMES = f"""
SELECT if({{by_users:UInt8}}, '', toString(user)) AS first,
       if({{by_client_ids:UInt8}}, '', toString(client_id)) AS second, 60 * count() AS weight
FROM usage_1m WHERE {_OF_SLICE} AND cityHash64(user, client_id) % {{one_of:UInt32}} = 0
GROUP BY first, second
HAVING isValidUTF8(first) AND isValidUTF8(second)
ORDER BY first, second"""  # noqa: S608 - made of our own words
_CHOSEN = 20_000  # clients from which boundaries are chosen: slices differ by a per cent or two
_LEAST_WEIGHT = 60  # of a client, about


def slices_of_clients(
    clickhouse: ClickHouse, slices: Iterable[Mapping[str, Any]], limits: ClientLimits, *, most: int = SLICE_ROWS
) -> Iterator[dict[str, Any]]:
    """The query parameters of each slice with its interval of clients: everyone, or a part of them where a slice has
    more weight than `most`. `slices` have `source`, too. `limits`: of clients whose rows lack them. Raises
    StoreError."""
    for part in slices:
        number = -(-part["weight"] // most)
        shared = _shared(clickhouse, part, limits) if number > 1 else {}
        if number <= 1 or all(shared.values()):
            yield {**part, **_EVERYONE, **_EVERY_CLIENT_ID}
            continue
        one_of = max(part["weight"] // (_CHOSEN * _LEAST_WEIGHT), 1)
        names = clickhouse.rows(_NAMES, {**part, **shared, "one_of": one_of})
        yield from (
            {**part, **interval} for interval in _intervals(names, number, by_client_id=bool(shared["by_users"]))
        )


def _intervals(names: Sequence[Mapping[str, Any]], number: int, *, by_client_id: bool) -> Iterator[dict[str, Any]]:
    """`number` intervals of about the same weight. `names` are ordered."""
    weight = sum(name["weight"] for name in names) / number
    starts, filled = [("", "")], 0
    for name in names:
        if filled >= weight:
            starts.append((name["first"], name["second"]))
            filled = 0
        filled += name["weight"]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        until, is_last = end or ("", ""), int(end is None)
        if by_client_id:
            yield {**_EVERYONE, "least_client_id": start[1], "below_client_id": until[1], "is_last_client_id": is_last}
        else:
            begin = {"from_user": start[0], "from_client_id": start[1]}
            yield {**_EVERY_CLIENT_ID, **begin, "to_user": until[0], "to_client_id": until[1], "is_last": is_last}


def _shared(clickhouse: ClickHouse, part: Mapping[str, Any], limits: ClientLimits) -> dict[str, int]:
    """Whether buckets of the slice have several users (`by_users`), and several client-ids (`by_client_ids`)."""
    (row,) = clickhouse.rows(_SHARED, part)
    members: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for (cluster, quota_key, user, client_id), intervals in limits.intervals.items():
        if (cluster, quota_key) == (part["cluster"], part["quota_key"]):
            for interval in intervals:
                if interval.state == "limited":
                    members[interval.bucket_user, interval.bucket_client_id].add((user, client_id))
    users = any(len({user for user, _ in clients}) > 1 for clients in members.values())
    client_ids = any(len({client_id for _, client_id in clients}) > 1 for clients in members.values())
    return {"by_users": int(row["by_users"] or users), "by_client_ids": int(row["by_client_ids"] or client_ids)}
