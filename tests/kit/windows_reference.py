"""Reference of the windows of usage: plain loops, second by second, from the definitions of docs/levels.md.

Written without the code that it checks: a row counts in the second that contains its ts, rates are summed per second
over gateways and clients, and each second of a bucket has one limit. A row of several seconds has no rate in those in
which its gateway has a row of fewer seconds of the client.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from ctypes import c_float
from typing import NamedTuple

LOOKBACK_MS = 600_000
LARGEST = 1e15


class Row(NamedTuple):
    """A row of quota_usage; cluster and source are fixed."""

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
    quota_key: str = "producer_byte_rate"
    matched_entity: str = ""
    decided_by: str = ""
    implied_limit: float = 0.0


class Expected(NamedTuple):
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
    throttle_ms: float
    usage_max: float
    greediest: tuple[str, str]
    greediest_usage: float
    members_usage: float
    matched_entity: str
    rule_limit: float | None
    decided_by: str
    implied_limit: float | None


class Quota(NamedTuple):
    """A quota as rows know it. `place`: what tells buckets apart."""

    place: tuple[str, str, str]
    limit: float
    entity: str


class _Client(NamedTuple):
    """One client at one broker in one window."""

    user: str
    client_id: str
    rows: list[Row]
    muting: list[Row]
    rates: list[float]
    sampled: list[bool]
    area: float
    covered: bool
    muted_ms: int
    throttle_ms: float


class _Member(NamedTuple):
    client: _Client
    seconds: list[int]
    whole: bool


class _Figures(NamedTuple):
    mean: float
    p95: float


Key = tuple[str, str, int, int]  # user, client-id, broker, window


def windows(rows: Iterable[Row], from_ms: int, to_ms: int, window_ms: int) -> dict[Key, Expected]:
    """The windows of one quota key that begin in [from_ms, to_ms)."""
    good = []
    for row in rows:
        numbers = [row.rate] if row.limit is None else [row.rate, row.limit]
        is_good = math.isfinite(row.rate) and row.rate <= LARGEST and all(number >= 0 for number in numbers)
        if is_good and from_ms - LOOKBACK_MS <= row.at_ms < to_ms:
            good.append(row._replace(limit=None) if row.limit is not None and row.limit > LARGEST else row)
    found: dict[Key, Expected] = {}
    for window in range(from_ms, to_ms, window_ms):
        until = min(window + window_ms, to_ms)
        for broker in sorted({row.broker_id for row in good}):
            at_broker = [row for row in good if row.broker_id == broker]
            found |= _broker_window(at_broker, broker, window, until, window_ms)
    return found


def _broker_window(rows: list[Row], broker: int, window: int, until: int, window_ms: int) -> dict[Key, Expected]:
    elapsed = math.ceil((until - window) / 1000)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.user, row.client_id].append(row)
    clients = [_client(group, window, until, window_ms) for group in groups.values()]
    members: dict[tuple[str, str, str], list[_Member]] = defaultdict(list)
    known: dict[tuple[str, str, str], dict[tuple[float, str], set[int]]] = defaultdict(lambda: defaultdict(set))
    for client in clients:
        if client is None:
            continue
        seen = _known(client, window, window_ms)
        places = _places(seen, window_ms // 1000)
        for place in sorted(set(places)):
            seconds = [second for second, at in enumerate(places) if at == place and second < elapsed]
            if seconds:
                whole = len(set(places)) == 1
                members[place].append(_Member(client, seconds, whole))
                for quota, when in seen.items():
                    if quota.place == place:
                        known[place][quota.limit, quota.entity] |= when
    found: dict[Key, list[tuple[tuple[object, ...], Expected]]] = defaultdict(list)
    for place, group in members.items():
        for client, order, expected in _bucket(place, group, known[place], elapsed, window_ms):
            found[client.user, client.client_id, broker, window].append((order, expected))
    return {key: _unexplained(max(several, key=lambda one: one[0])[1]) for key, several in found.items()}


def _unexplained(one: Expected) -> Expected:
    """A limit that is not what the brokers use is no limit."""
    implied, rule = one.implied_limit, one.rule_limit
    if one.decided_by or (implied is not None and rule is not None and implied < 0.5 * rule):
        return one._replace(limit=None, state="unknown")
    return one


def _implied(client: _Client) -> float | None:
    known = [row.implied_limit for row in client.rows if math.isfinite(row.implied_limit) and row.implied_limit > 0]
    known = [limit for limit in known if limit <= LARGEST]
    return sum(known) / len(known) if known else None


def _client(rows: list[Row], window: int, until: int, window_ms: int) -> _Client | None:
    own = [row for row in rows if window <= row.at_ms < until]
    muting = [row for row in rows if row.at_ms < window and _bare_end(row) > window]
    if not own and not muting:
        return None
    seconds = window_ms // 1000
    meters: dict[tuple[str, object, int, int], list[float]] = defaultdict(list)
    for row in own:
        n, first = slot_of(row, window, window_ms)
        quota = (row.limit_known, row.limit, row.matched_entity, row.bucket_user, row.bucket_client_id)
        meters[row.gateway_id, quota, n, first].append(row.rate)
    rates, sampled = [0.0] * seconds, [False] * seconds
    finest: dict[tuple[str, int], int] = {}
    for gateway, _, n, first in meters:
        for second in range(first, min(first + max(n, 1), seconds)):
            finest[gateway, second] = min(max(n, 1), finest.get((gateway, second), seconds))
    bare_area = 0.0
    for (gateway, _, n, first), values in meters.items():
        for second in range(first, min(first + max(n, 1), seconds)):
            if max(n, 1) == finest[gateway, second]:
                rates[second] += sum(values) / len(values)
            sampled[second] = True
        bare_area += 1000 * sum(values) / len(values) if n == 0 else 0.0
    area = bare_area + sum(row.rate * min(row.interval_ms, window_ms) for row in own)
    spans = [(max(row.at_ms, window), min(_bare_end(row), until)) for row in (*own, *muting) if not row.interval_ms]
    bare_ms = len({ms for start, end in spans for ms in range(start, end)})
    muted_ms = min(bare_ms + _muted(own, window, window_ms), until - window)
    throttle_ms = max(_announced(row) for row in (*own, *muting))
    return _Client(
        *(rows[0].user, rows[0].client_id, own, muting, rates, sampled, area),
        *(any(row.interval_ms for row in own), muted_ms, throttle_ms),
    )


def _known(client: _Client, window: int, window_ms: int) -> dict[Quota, set[int]]:
    """The quotas that the client's rows know, each with the seconds of such rows."""
    found: dict[Quota, set[int]] = defaultdict(set)
    for row in [row for row in client.rows if row.limit_known]:
        n, first = slot_of(row, window, window_ms)
        found[_quota(row)] |= set(range(first, min(first + max(n, 1), window_ms // 1000)))
    if not found:
        for row in [row for row in client.muting if row.limit_known]:
            found[_quota(row)] |= set()
    return found or {Quota(("unknown", client.user, client.client_id), -1.0, ""): set()}


def _quota(row: Row) -> Quota:
    if row.limit is None:
        return Quota(("none", row.user, row.client_id), -1.0, row.matched_entity)
    return Quota(("limited", row.bucket_user, row.bucket_client_id), row.limit, row.matched_entity)


def _newness(seconds: set[int], limit: float) -> tuple[float, float, float]:
    first, last = (min(seconds), max(seconds)) if seconds else (-1, -1)
    return first, last, -math.inf if limit < 0 else -limit


def _in_force(candidates: Sequence[tuple[object, set[int]]], seconds: int) -> list[object]:
    """Per second the last of the candidates (ordered) that is known in it, else of the last second before it with one,
    else of the first after it; without any the last."""
    at: list[object | None] = [
        next((value for value, known in reversed(candidates) if second in known), None) for second in range(seconds)
    ]
    for order in (range(1, seconds), range(seconds - 2, -1, -1)):
        step = 1 if order.step > 0 else -1
        for second in order:
            if at[second] is None:
                at[second] = at[second - step]
    return [candidates[-1][0] if value is None else value for value in at]


def _places(seen: dict[Quota, set[int]], seconds: int) -> list[tuple[str, str, str]]:
    """The client's bucket in each second."""
    order = sorted(seen, key=lambda quota: (*_newness(seen[quota], quota.limit), quota.entity, quota.place[1:]))
    return _in_force([(quota.place, seen[quota]) for quota in order], seconds)  # type: ignore[return-value]


def _parts(
    members: list[_Member], by_limit: dict[float, set[int]], limits: list[float], elapsed: int, window_ms: int
) -> list[tuple[float, _Figures]]:
    """Per limit the figures of its seconds."""
    covered = any(member.client.covered for member in members)
    held = sorted({second for member in members for second in member.seconds})
    whole = any(member.whole for member in members)
    rates, sampled = _sums(members, window_ms // 1000)
    if len(limits) == 1:
        area = sum(_area(member) for member in members)
        counted = list(range(elapsed)) if whole else held
        parts = [(limits[0], _figures(rates, sampled, counted, area, covered))]
    else:
        at = _in_force([(limit, by_limit[limit]) for limit in limits], window_ms // 1000)
        parts = []
        for limit in limits:
            counted = [s for s in range(window_ms // 1000) if at[s] == limit]
            counted = [s for s in counted if (s < elapsed and (whole or s in held) if covered else sampled[s])]
            values = [rates[s] for s in counted]
            mean = sum(values) / len(values) if values else 0.0
            parts.append((limit, _Figures(mean, _p95(values)) if values else _Figures(-1.0, -1.0)))
    return parts


def _bucket(
    place: tuple[str, str, str],
    members: list[_Member],
    known: dict[tuple[float, str], set[int]],
    elapsed: int,
    window_ms: int,
) -> list[tuple[_Client, tuple[object, ...], Expected]]:
    by_limit: dict[float, set[int]] = defaultdict(set)
    entities: dict[float, str] = {}
    for (limit, entity), seconds in known.items():
        by_limit[limit] |= seconds
        entities[limit] = min(entities.get(limit, entity), entity)
    limits = sorted(by_limit or {-1.0: set()}, key=lambda limit: _newness(by_limit.get(limit, set()), limit))
    covered = any(member.client.covered for member in members)
    rates, sampled = _sums(members, window_ms // 1000)
    parts = _parts(members, by_limit, limits, elapsed, window_ms)
    limit, group = min(parts, key=lambda part: (part[1].mean < 0, -_fullness(part[0], max(part[1])), part[0]))
    newest = elapsed - 1 if covered else max((s for s, one in enumerate(sampled) if one), default=0)
    group_last = max(rates[newest], rates[newest - 1] if newest else 0.0)  # the greater rate of the last two seconds
    own = {id(m.client): _own(m) for m in members}
    ranked = sorted(members, key=lambda m: (-own[id(m.client)].mean, m.client.user, m.client.client_id))
    several = len(ranked) > 1 and own[id(ranked[0].client)].mean == own[id(ranked[1].client)].mean
    greediest = ("", "") if several else (ranked[0].client.user, ranked[0].client.client_id)
    order = (["unknown", "none", "limited"].index(place[0]), _fullness(limit, max(group)), place[1:])
    return [
        (
            member.client,
            order,
            Expected(
                len(member.client.rows),
                *own[id(member.client)],
                *group,
                group_last,
                len(members) - 1,
                member.client.muted_ms,
                None if limit < 0 else limit,
                place[0],
                member.client.throttle_ms,
                max(member.client.rates[s] for s in (range(window_ms // 1000) if member.whole else member.seconds)),
                greediest,
                0.0 if several else own[id(ranked[0].client)].mean,
                sum(one.mean for one in own.values()),
                entities.get(limit, ""),
                None if limit < 0 else limit,
                max(row.decided_by for row in (*member.client.rows, *member.client.muting)),
                _implied(member.client),
            ),
        )
        for member in members
    ]


def _sums(members: list[_Member], seconds: int) -> tuple[list[float], list[bool]]:
    rates, sampled = [0.0] * seconds, [False] * seconds
    for member in members:
        for second in range(seconds) if member.whole else member.seconds:
            rates[second] += member.client.rates[second]
            sampled[second] |= member.client.sampled[second]
    return rates, sampled


def _area(member: _Member) -> float:
    return member.client.area if member.whole else 1000 * sum(member.client.rates[s] for s in member.seconds)


def _own(member: _Member) -> _Figures:
    client = member.client
    sampled = [seen and (member.whole or s in member.seconds) for s, seen in enumerate(client.sampled)]
    return _figures(client.rates, sampled, member.seconds, _area(member), client.covered)


def _figures(rates: list[float], sampled: list[bool], seconds: list[int], area: float, covered: bool) -> _Figures:
    if covered:
        return _Figures(area / (1000 * len(seconds)), _p95([rates[second] for second in seconds]))
    values = [rate for rate, seen in zip(rates, sampled, strict=True) if seen]
    return _Figures(area / 1000 / max(len(values), 1), _p95(values))


def _p95(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.floor(0.95 * len(ordered)))] if ordered else 0.0


def _fullness(limit: float, rate: float) -> float:
    """In single precision: a tie is no matter of the order in which rates were added."""
    if limit > 0:
        return c_float(rate / limit).value
    return math.inf if limit == 0 and rate > 0 else 0.0


def slot_of(row: Row, window: int, window_ms: int) -> tuple[int, int]:
    """How many seconds a row covers (0: unknown interval), and the first of them in the window."""
    n = 0 if not row.interval_ms else max(1, min((row.interval_ms + 500) // 1000, window_ms // 1000))
    second = (row.at_ms - window) // 1000
    return n, second // max(n, 1) * max(n, 1)


def _announced(row: Row) -> int:
    return math.ceil(row.throttle_ms) if math.isfinite(row.throttle_ms) and row.throttle_ms > 0 else 0


def _bare_end(row: Row) -> int:
    """Until when a bare row mutes."""
    return row.at_ms if row.interval_ms else row.at_ms + min(_announced(row), 600_000)


def _muted(own: list[Row], window: int, window_ms: int) -> int:
    """Per second the longest muted time over all gateways, from rows with an interval."""
    meters: dict[object, float] = defaultdict(float)
    longest: dict[int, float] = defaultdict(float)
    for row in own:
        n, first = slot_of(row, window, window_ms)
        seconds = range(first, min(first + n, window_ms // 1000)) if row.interval_ms else range(0)
        quota = (row.limit_known, row.limit, row.matched_entity, row.bucket_user, row.bucket_client_id)
        for second in seconds:
            meter = (row.gateway_id, quota, n, second)
            meters[meter] += min(row.muted_ms, row.interval_ms, window_ms) / len(seconds)
            longest[second] = max(longest[second], meters[meter])
    return round(sum(longest.values()))
