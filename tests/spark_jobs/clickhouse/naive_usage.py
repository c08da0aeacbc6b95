"""Reference implementation of the usage query: plain loops over rows of quota_usage."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

LOOKBACK_MS = 600_000
BAD_ABOVE = 1e15


class Row(NamedTuple):
    """A row of quota_usage; cluster, quota key and source are fixed."""

    at_ms: int
    user: str
    client_id: str
    broker_id: int
    rate: float
    throttle_ms: float = 0.0
    gateway_id: str = ""
    interval_ms: int = 0
    limit: float | None = None
    limit_known: int = 0
    bucket_user: str = ""
    bucket_client_id: str = ""
    muted_ms: int = 0


class Verdict(NamedTuple):
    """Expected values of one client, broker and window."""

    samples: int
    usage: float
    usage_p95: float
    group_usage: float
    group_p95: float
    group_last: float
    shared_with: int
    muted_ms: int
    limit: float | None
    state: str


Key = tuple[str, str, int, int]  # user, client-id, broker, window


def verdicts(rows: Iterable[Row], from_ms: int, to_ms: int, window_ms: int) -> dict[Key, Verdict]:
    """Windows of rows in which each client has one limit per window, `limit_known` in all of its rows or in none."""
    rows = [row._replace(limit=None) if is_unlimited(row) else row for row in rows]
    good = [row for row in rows if is_good(row) and from_ms - LOOKBACK_MS <= row.at_ms < to_ms]
    clients: dict[Key, list[Row]] = defaultdict(list)
    mutes: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for row in good:
        window = row.at_ms // window_ms * window_ms
        if row.at_ms >= from_ms:
            clients[row.user, row.client_id, row.broker_id, window].append(row)
        announced = math.ceil(row.throttle_ms) if math.isfinite(row.throttle_ms) and row.throttle_ms > 0 else 0
        length = 0 if row.interval_ms else announced
        at = max(window, from_ms)
        while length and at < min(row.at_ms + length, to_ms):
            until = min(row.at_ms + length, at + window_ms, to_ms)
            mutes[row.user, row.client_id, row.broker_id, at].append((max(row.at_ms, at), until))
            at += window_ms
    found: dict[Key, Verdict] = {}
    buckets: dict[Any, list[tuple[Key, list[Row]]]] = defaultdict(list)
    for key in clients.keys() | mutes.keys():
        own = clients.get(key, [])
        buckets[bucket_of(key, own or muting(good, key))].append((key, own))
    for members in buckets.values():
        everyone = [row for _, own in members for row in own]
        for key, own in members:
            window = key[3]
            elapsed_ms = min(window + window_ms, to_ms) - window
            usage, p95, _ = measured(own, window, elapsed_ms, window_ms)
            group_usage, group_p95, group_last = measured(everyone, window, elapsed_ms, window_ms)
            known = own or muting(good, key)
            limit = known[0].limit if known[0].limit_known else None
            state = ("limited" if limit is not None else "none") if known[0].limit_known else "unknown"
            found[key] = Verdict(
                *(len(own), usage, p95, group_usage, group_p95, group_last, len(members) - 1),
                *(min(union(mutes[key]) + muted(own, window, window_ms), elapsed_ms), limit, state),
            )
    return found


def is_unlimited(row: Row) -> bool:
    return row.limit is not None and row.limit > BAD_ABOVE


def is_good(row: Row) -> bool:
    numbers = (row.rate,) if row.limit is None else (row.rate, row.limit)
    return all(math.isfinite(number) and 0 <= number <= BAD_ABOVE for number in numbers)


def muting(rows: list[Row], key: Key) -> list[Row]:
    client = [row for row in rows if (row.user, row.client_id, row.broker_id) == key[:3]]
    return [row for row in client if row.throttle_ms > 0 and not row.interval_ms]


def bucket_of(key: Key, rows: list[Row]) -> Any:
    first = rows[0]
    if first.limit_known and first.limit is not None:
        return first.bucket_user, first.bucket_client_id, first.limit, *key[2:]
    return key


def measured(rows: list[Row], window: int, elapsed_ms: int, window_ms: int) -> tuple[float, float, float]:
    """Mean, 95th percentile and newest value (the greater one of two seconds) of the sum over all clients, gateways and
    seconds."""
    meters: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        n, first = slot_of(row, window, window_ms)
        meters[row.user, row.client_id, row.gateway_id, n, first].append(row.rate)
    seconds: dict[int, float] = defaultdict(float)
    bare = 0.0
    for (*_, n, first), rates in meters.items():
        for second in range(first, min(first + max(n, 1), window_ms // 1000)):
            seconds[second] += sum(rates) / len(rates)
        bare += sum(rates) / len(rates) * 1000 if n == 0 else 0.0
    elapsed_s = -(-elapsed_ms // 1000)
    if any(row.interval_ms for row in rows):
        area = sum(row.rate * min(row.interval_ms, window_ms) for row in rows if row.interval_ms) + bare
        values = sorted(seconds.get(second, 0.0) for second in range(elapsed_s))
        newest = max(seconds.get(elapsed_s - 1, 0.0), seconds.get(elapsed_s - 2, 0.0))
        return area / (elapsed_s * 1000), values[min(len(values) - 1, math.floor(0.95 * len(values)))], newest
    values = sorted(seconds.values())
    if not values:
        return 0.0, 0.0, 0.0
    newest = max(seconds[max(seconds)], seconds.get(max(seconds) - 1, 0.0))
    return bare / 1000 / len(values), values[min(len(values) - 1, math.floor(0.95 * len(values)))], newest


def slot_of(row: Row, window: int, window_ms: int) -> tuple[int, int]:
    """How many seconds a row covers (0: unknown interval), and the first of them in the window."""
    n = 0 if not row.interval_ms else max(1, min((row.interval_ms + 500) // 1000, window_ms // 1000))
    second = (row.at_ms - window) // 1000
    return n, second // max(n, 1) * max(n, 1)


def muted(rows: list[Row], window: int, window_ms: int) -> int:
    """Per second the longest muted time over all gateways, from rows with an interval."""
    meters: dict[tuple[str, int, int], float] = defaultdict(float)
    for row in rows:
        n, first = slot_of(row, window, window_ms)
        seconds = range(first, min(first + n, window_ms // 1000)) if row.interval_ms else range(0)
        for second in seconds:
            meters[row.gateway_id, n, second] += min(row.muted_ms, row.interval_ms, window_ms) / len(seconds)
    longest: dict[int, float] = defaultdict(float)
    for (_, _, second), ms in meters.items():
        longest[second] = max(longest[second], ms)
    return round(sum(longest.values()))


def union(spans: list[tuple[int, int]]) -> int:
    muted: set[int] = set()
    for start, end in spans:
        muted.update(range(start, end))
    return len(muted)
