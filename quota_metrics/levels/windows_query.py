"""The SELECT that makes windows from samples of usage: one row per client, broker and window.

The jobs' ranges and the live minute use the same steps, each a subquery of the next:

1. samples: usable rows; bare rows (interval_ms = 0) with every window that their throttle time overlaps;
2. meters: per client, gateway, address, cadence and quota the mean rate of each second of a window, as an array;
3. windows: per client the sum of its meters, whatever quota they carry; per second the longest muted time of its
   meters, and the union of the throttle times of bare rows; the quotas that its rows know (`limit_known`);
4. members: per client and bucket (metric tags) the seconds in which the client belongs to the bucket, by these quotas,
   else by those of `quota_client_limits`, which were resolved from the history of limits;
5. buckets: per bucket the sum of all clients that share it, second by second, and its limit in each second.

A row belongs to the window, and to the second, that contains its `ts`. Rates are summed per second before a mean or a
quantile is taken, so clients need not run side by side and gateways need not see the same seconds. The quota of a
second is what rows of that second know; a second without such a row has the quota of the last second before it that
has one, else of the first after it. If the rows of a second disagree, as those of two gateways do while a change
reaches them, the quota that came up later in the window is the newer one; if that does not tell, the lower limit
counts. Of a window in which the limit of a bucket changes, the seconds of that limit count of which the bucket takes
the largest share. A limit that does not decide is none (`state` unknown, `limit` NULL, the rule's number in
`rule_limit`): rows name a class that decides (`decided_by`), or the throttle times imply less than UNEXPLAINED of it.
Duplicates of a row do not count (FINAL).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from exporters.clickhouse.releases import EARLIER_PLANNER
from quota_metrics.levels.definition import LARGEST_RATE, MUTED_LOOKBACK_MS, UNEXPLAINED

BAD_NUMBER: Final = f"NOT (isFinite(rate) AND rate >= 0 AND rate <= {LARGEST_RATE:.0f} AND ifNull(limit >= 0, 1))"

# Nested subqueries take the analyzer up to 2 CPU-seconds to plan, because it visits inner ones again for each
# expression. `view` and the earlier planner take 0.2. What a branch of if() does for few rows is not computed for all.
# A WITH clause is of its own SELECT: handing it on to the inner ones takes a sixth of the planning.
SETTINGS: Final = (
    f"SETTINGS {EARLIER_PLANNER}enable_global_with_statement = 0, short_circuit_function_evaluation = 'force_enable'"
)

KEY: Final = ("cluster", "source", "quota_key")
# Rows of usage_1m that are not used any more have neither (usage_windows._REPLACE).
IS_USED: Final = "(samples > 0 OR throttle_ms > 0)"
OF_KEY: Final = "source = {source:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String}"

# The clients of one slice of a divided window: an interval of the sorting key, which prunes what is read, and one of
# client-ids.
OF_CLIENTS: Final = """
    (user > {from_user:String} OR (user = {from_user:String} AND client_id >= {from_client_id:String}))
    AND ({is_last:UInt8} OR user < {to_user:String}
         OR (user = {to_user:String} AND client_id < {to_client_id:String}))
    AND client_id >= {least_client_id:String}
    AND ({is_last_client_id:UInt8} OR client_id < {below_client_id:String})"""

_QUOTA = "limit_known, row_limit, entity, bucket_user, bucket_client_id"
_LAST_MUTING_MS = f"{{from_ms:Int64}} - {MUTED_LOOKBACK_MS}"


class Samples(StrEnum):
    """What windows are made from."""

    USAGE = "quota_usage"  # rows of one cluster, source and quota key
    RECENT = "quota_usage_recent"  # the last hours of all clusters, ordered by minute
    MINUTES = "usage_1m"  # minutes of one key that `store_minutes` computed; for windows of whole minutes


@dataclass(frozen=True, slots=True)
class WindowsQuery:
    """Windows of `window_s` seconds, of all clients or, if `divided`, of those of OF_CLIENTS. `assigned`: buckets are
    those of quota_client_limits, whatever rows know. A statement that contains the query ends with SETTINGS.

    Parameters: from_ms, to_ms (from on the grid of windows), window_ms; of one key source, cluster and quota_key; run,
    under which quota_client_limits holds resolved limits; if `divided`, those of OF_CLIENTS.
    """

    window_s: int
    samples: Samples = Samples.USAGE
    divided: bool = False
    assigned: bool = False

    @property
    def _has_key(self) -> bool:
        return self.samples is Samples.RECENT

    @property
    def _key(self) -> str:
        """The columns that tell rows of different keys apart; a query of one key groups by none of them."""
        return "".join(f"{name}, " for name in KEY) if self._has_key else ""

    @property
    def _client(self) -> str:
        return f"{self._key}user, client_id, broker_id, window_ms"

    @property
    def _named_key(self) -> str:
        if self._has_key:
            return ", ".join(KEY)
        return ", ".join(f"{{{name}:String}} AS {name}" for name in KEY)

    def _samples(self) -> str:
        # A sample belongs to the window that contains its ts. `cadence_s` 0: a bare sample with unknown interval. Rows
        # before the range are read only for the time they mute within it: a union ignores duplicates, so no FINAL.
        usable = f"NOT ({BAD_NUMBER})" if self._has_key else f"{OF_KEY} AND NOT ({BAD_NUMBER})"
        usable += f" AND {OF_CLIENTS}" if self.divided else ""
        within, before = "{from_ms:Int64}", f"({_LAST_MUTING_MS})"
        pruned = "minute BETWEEN toStartOfMinute(fromUnixTimestamp64Milli({})) AND fromUnixTimestamp64Milli({}) AND "
        own = pruned.format(within, "{to_ms:Int64}") if self._has_key else ""
        earlier = pruned.format(before, within) if self._has_key else ""
        key = "cluster, toString(q.source) AS source, quota_key, " if self._has_key else ""
        return f"""
SELECT {key}toValidUTF8(q.user) AS user, toValidUTF8(q.client_id) AS client_id, broker_id, gateway_id, ip, bytes, rate,
       limit_known,
       ifNull(if(limit > {LARGEST_RATE:.0f}, -1, limit), -1) AS row_limit, toValidUTF8(q.decided_by) AS decided_by,
       if(isFinite(q.implied_limit) AND q.implied_limit <= {LARGEST_RATE:.0f}, greatest(q.implied_limit, 0), 0)
           AS implied,
       toValidUTF8(matched_entity) AS entity, toValidUTF8(q.bucket_user) AS bucket_user,
       toValidUTF8(q.bucket_client_id) AS bucket_client_id, received_at,
       toUnixTimestamp64Milli(ts) AS at_ms, at_ms - at_ms % {{window_ms:Int64}} AS own_window_ms,
       if(interval_ms = 0, 0, greatest(1, least(intDiv(interval_ms + 500, 1000), intDiv({{window_ms:Int64}}, 1000))))
           AS cadence_s,
       least(interval_ms, {{window_ms:Int64}}) AS covered_ms,
       toInt64(if(isFinite(throttle_ms) AND throttle_ms > 0, ceil(least(throttle_ms, 1e9)), 0)) AS announced_ms,
       if(interval_ms = 0, least(announced_ms, {MUTED_LOOKBACK_MS}), 0) AS muted_for_ms,
       least(muted_ms, covered_ms) AS own_muted_ms,
       arrayJoin(if(at_ms >= {{from_ms:Int64}} AND at_ms + muted_for_ms <= own_window_ms + {{window_ms:Int64}},
                    [own_window_ms],
                    range(greatest(own_window_ms, {{from_ms:Int64}}),
                          least(at_ms + greatest(muted_for_ms, 1), {{to_ms:Int64}}),
                          {{window_ms:Int64}}))) AS window_ms,
       window_ms = own_window_ms AS own
FROM (
    SELECT * FROM {self.samples} FINAL
    WHERE {own}ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND {usable}
    UNION ALL
    SELECT * FROM {self.samples}
    WHERE {earlier}ts >= fromUnixTimestamp64Milli({_LAST_MUTING_MS})
      AND ts < fromUnixTimestamp64Milli({{from_ms:Int64}}) AND throttle_ms > 0 AND interval_ms = 0 AND {usable}
) AS q
"""  # noqa: S608 - made of our own words

    def meters(self) -> str:
        """Per client, gateway, address, cadence and quota the mean rate of each second of each window."""
        if self.samples is Samples.MINUTES:
            return self._stored_meters()
        # A row with a cadence of n seconds covers the n-second step of the window's grid that contains its ts.
        slot = "toUInt16(intDiv(intDiv(at_ms - window_ms, 1000), greatest(cadence_s, 1)) * greatest(cadence_s, 1))"
        return f"""
WITH if(own, {slot}, 0) AS slot, toUInt16(least(slot + greatest(cadence_s, 1), {self.window_s})) AS slot_end,
     slot_end - slot AS slots
SELECT {self._client}, {_QUOTA}, gateway_id, ip, cadence_s,
       avgResample(0, {self.window_s}, 1)(rate, if(own, slot, -1)) AS meter_rates,
       sumIf(rate * covered_ms, own) AS meter_area, countIf(own) AS meter_samples,
       max(announced_ms) AS meter_throttle_ms, max(decided_by) AS meter_decided_by,
       [sumIf(implied, own), toFloat64(countIf(own AND implied > 0))] AS meter_implied,
       sumMapIf(mapFromArrays(range(slot, slot_end), arrayWithConstant(slots, own_muted_ms / slots)),
                own_muted_ms > 0) AS meter_muted_at,
       sumIf(bytes, own) AS meter_bytes, max(received_at) AS newest,
       intervalLengthSumStateIf(greatest(at_ms, window_ms),
           least(at_ms + muted_for_ms, window_ms + {{window_ms:Int64}}, {{to_ms:Int64}}),
           muted_for_ms > 0) AS meter_muted
FROM ({self._samples()})
GROUP BY {self._client}, {_QUOTA}, gateway_id, ip, cadence_s"""  # noqa: S608 - made of our own words

    def _stored_meters(self) -> str:
        """The same, read from usage_1m, for windows of whole minutes."""
        stored = f"""{self.samples} FINAL
WHERE window_start >= toDateTime(intDiv({{from_ms:Int64}}, 1000))
  AND window_start < toDateTime(intDiv({{to_ms:Int64}}, 1000)) AND {OF_KEY} AND {IS_USED}""" + (
            f" AND {OF_CLIENTS}" if self.divided else ""
        )
        minutes = self.window_s // 60
        key = "user, client_id, broker_id"
        quota = "limit_known, limit, matched_entity, bucket_user, bucket_client_id"
        meter = "limit_known, limit AS row_limit, matched_entity AS entity, bucket_user, bucket_client_id, cadence_s"
        if minutes == 1:  # each row is a window: no grouping
            return f"""
SELECT {key}, toInt64(toUnixTimestamp(window_start)) * 1000 AS window_ms, {meter}, gateway_id, ip,
       rates AS meter_rates, area AS meter_area, samples AS meter_samples, throttle_ms AS meter_throttle_ms,
       muted AS meter_muted, muted_at AS meter_muted_at, bytes AS meter_bytes, decided_by AS meter_decided_by,
       implied AS meter_implied
FROM {stored}
"""  # noqa: S608 - made of our own words
        return f"""
SELECT {key}, intDiv(toInt64(toUnixTimestamp(window_start)), {self.window_s}) * {self.window_s * 1000} AS window_ms,
       {meter},
       gateway_id, ip, groupArray(toUInt32(intDiv(toUnixTimestamp(window_start) % {self.window_s}, 60))) AS minutes,
       groupArray(rates) AS minute_rates,
       arrayFlatten(arrayMap(minute -> if(has(minutes, minute), minute_rates[indexOf(minutes, minute)],
                                          arrayWithConstant(60, nan)), range({minutes}))) AS meter_rates,
       sum(area) AS meter_area, sum(samples) AS meter_samples, max(throttle_ms) AS meter_throttle_ms,
       intervalLengthSumMergeState(muted) AS meter_muted,
       maxMap(mapApply((slot, ms) -> (toUInt16(slot + toUnixTimestamp(window_start) % {self.window_s}), ms), muted_at))
           AS meter_muted_at, sum(bytes) AS meter_bytes, max(decided_by) AS meter_decided_by,
       sumForEach(implied) AS meter_implied
FROM {stored}
GROUP BY {key}, window_ms, {quota}, cadence_s, gateway_id, ip
"""  # noqa: S608 - made of our own words

    def _windows(self) -> str:
        """Per client and window its rates and `known`, the quotas that its rows know: (state, limit, entity, tags,
        seconds), the newer the later. Quotas of earlier rows that mute count if no row of the window knows one."""
        # A lambda must not use an array of the row: it would be copied for each element. The steps of a cadence begin
        # with the window, those of stored minutes with each minute.
        grid_s = 60 if self.samples is Samples.MINUTES else self.window_s
        begins = f"slot % {grid_s} % cadence_s = 0" if grid_s < self.window_s else "slot % cadence_s = 0"
        spread = f"arrayFill((rate, slot) -> {begins}, meter_rates, range({self.window_s}))"
        return f"""
WITH if(cadence_s <= 1, meter_rates, {spread}) AS spread,
     arrayMap(rate -> toUInt8(isFinite(rate)), spread) AS meter_sampled,
     (if(row_limit < 0, 'none', 'limited'), row_limit, entity, if(row_limit < 0, user, bucket_user),
      if(row_limit < 0, client_id, bucket_client_id), meter_sampled) AS quota
SELECT {self._client}, sum(meter_samples) AS samples, max(meter_throttle_ms) AS throttle_ms,
       max(meter_decided_by) AS decided_by, sumForEach(meter_implied) AS implied,
       if(implied[2] > 0, implied[1] / implied[2], 0) AS implied_limit,
       intDiv(least({{window_ms:Int64}}, {{to_ms:Int64}} - window_ms) + 999, 1000) AS elapsed_s,
       least(intervalLengthSumMerge(meter_muted) + toInt64(round(arraySum(mapValues(maxMap(meter_muted_at))))),
             least({{window_ms:Int64}}, {{to_ms:Int64}} - window_ms)) AS muted_ms,
       sum(meter_bytes) AS bytes, sumForEach(arrayMap(rate -> ifNotFinite(rate, 0), spread)) AS rates,
       maxForEach(meter_sampled) AS sampled,
       sum(if(cadence_s > 0, meter_area, 1000 * arraySum(arrayFilter(rate -> isFinite(rate), meter_rates)))) AS area,
       max(cadence_s > 0) AS covered,
       groupArrayIf(quota, limit_known AND meter_samples > 0) AS of_rows,
       groupArrayIf(quota, limit_known AND meter_samples = 0) AS of_muting,
       if(empty(of_rows), of_muting, of_rows) AS of_meters,
       if(length(of_meters) < 2, of_meters, arraySort(each -> ({_newer("each.6", "each.2")}, each.3, each.4, each.5),
          {_once("of_meters")})) AS known
FROM view({self.meters()})
GROUP BY {self._client}"""  # noqa: S608 - made of our own words

    def _limits(self) -> str:
        """Limits that were resolved for clients whose rows do not carry them, as intervals."""
        of_key = "" if self._has_key else " AND cluster = {cluster:String} AND quota_key = {quota_key:String}"
        of_clients = f" AND {OF_CLIENTS}" if self.divided else ""
        key = "cluster, quota_key, " if self._has_key else ""
        return f"""
SELECT {key}user, client_id,
       arraySort(groupUniqArray((from_ms, to_ms, toString(state), limit, matched_entity, bucket_user,
                                 bucket_client_id))) AS epochs
FROM quota_client_limits
WHERE run = {{run:String}}{of_key}
  AND from_ms < {{to_ms:Int64}} AND to_ms > {{from_ms:Int64}}{of_clients}
GROUP BY {key}user, client_id"""  # noqa: S608 - made of our own words

    def _members(self) -> str:
        """Per client and window its buckets; rates outside of the seconds of a bucket are 0. `mask`: these seconds, []
        for the whole window. `limits`: (limit, entity, seconds) of the bucket as this client's rows know them."""
        seconds = f"range({self.window_s})"
        resolved = f"""arrayMap(e -> (e.3, e.4, e.5, e.6, e.7,
             arrayMap(s -> toUInt8(s * 1000 + window_ms < e.2 AND s * 1000 + window_ms >= e.1), {seconds})),
             arrayFilter(e -> e.1 < window_ms + elapsed_s * 1000 AND e.2 > window_ms, l.epochs))"""
        unresolved = "[('unknown', toFloat64(-1), '', user, client_id, emptyArrayUInt8())]"
        places = "arrayDistinct(arrayMap(quota -> (quota.1, quota.4, quota.5), quotas))"
        limits = "arrayMap(quota -> (quota.2, quota.3, quota.6), quotas)"
        join_key = "cluster, quota_key, " if self._has_key else ""
        return f"""
SELECT {self._client}, samples, throttle_ms, muted_ms, elapsed_s, bytes, covered, decided_by, implied_limit,
       member.1 AS state,
       member.2 AS bucket_user, member.3 AS bucket_client_id, member.4 AS limits, member.5 AS mask,
       if(empty(mask), elapsed_s, toInt64(arraySum(arraySlice(mask, 1, elapsed_s)))) AS seconds,
       if(empty(mask), client_rates, arrayMap((rate, held) -> rate * held, client_rates,
          arrayResize(mask, length(client_rates), 1))) AS rates,
       if(empty(mask), client_sampled, arrayMap((seen, held) -> toUInt8(seen * held), client_sampled,
          arrayResize(mask, length(client_sampled), 1))) AS sampled,
       if(empty(mask), client_area, 1000 * arraySum(rates)) AS area
FROM (
    SELECT {self._client}, samples, throttle_ms, muted_ms, elapsed_s, bytes, covered, decided_by, implied_limit,
           rates AS client_rates, sampled AS client_sampled, area AS client_area, quotas, {places} AS places,
           arrayJoin(if(length(quotas) = 1 OR length(places) = 1,
               [(quotas[1].1, quotas[1].4, quotas[1].5, {limits}, emptyArrayUInt8())],
               arrayMap((place, number) -> (place.1, place.2, place.3,
                   arrayMap(quota -> (quota.2, quota.3, quota.6),
                            arrayFilter(quota -> (quota.1, quota.4, quota.5) = place, quotas)),
                   arrayMap(at -> toUInt8(at = number), {_held("quotas", "quota.6", place_of="quota")})),
                   places, arrayEnumerate(places)))) AS member
    FROM view(
        SELECT w.*, if({"0" if self.assigned else "notEmpty(known)"}, known,
                       if(empty(l.epochs), {unresolved}, {resolved})) AS quotas
        FROM view({self._windows()}) AS w
        LEFT JOIN ({self._limits()}) AS l USING ({join_key}user, client_id)
    )
)
WHERE seconds > 0"""  # noqa: S608 - made of our own words

    def buckets(self) -> str:
        """Per bucket, broker and window the rates of each second, the limit that counts, and figures of the seconds of
        that limit; members ordered by usage, highest first, each a tuple of MEMBER."""
        p95 = f"if(length(members) = 1, members[1].{member_at('usage_p95')}, {_p95('covered')})"
        return f"""
SELECT {self._named_key}, broker_id, window_ms, state, bucket_user, bucket_client_id, elapsed_s, rates, sampled,
       part.1 AS row_limit, part.2 AS entity, part.3 AS group_usage, part.4 AS group_p95, members,
       if(covered, elapsed_s, toInt64(arrayLastIndex(seen -> seen > 0, sampled))) AS newest,
       arrayMax(arraySlice(rates, greatest(newest - 1, 1), 2)) AS group_last,
       arraySum(members.{member_at("usage")}) AS members_usage,
       length(members) = 1 OR members[1].{member_at("usage")} > members[2].{member_at("usage")} AS has_greediest,
       if(has_greediest, members[1].{member_at("user")}, '') AS greediest_user,
       if(has_greediest, members[1].{member_at("client_id")}, '') AS greediest_client_id,
       if(has_greediest, members[1].{member_at("usage")}, 0) AS greediest_usage
FROM view(
    SELECT *, {_LIMITS} AS known, if(lowest = highest, [], {_held("known", "quota.3")}) AS in_force,
           if(lowest = highest, (lowest, arrayMin(limits.2), {_mean("covered", "seconds")}, {p95}),
              {_FULLEST_PART}) AS part
    FROM view({self._sums()})
)
"""  # noqa: S608 - made of our own words

    def _sums(self) -> str:
        """Per bucket the sum of its members, and what they know of its limit. `mask`: the seconds of the bucket, [] for
        all."""
        key = f"{self._key}broker_id, window_ms, state, bucket_user, bucket_client_id"
        own = f"{_mean('covered', 'seconds')} AS usage, {_p95('covered')} AS usage_p95, arrayMax(rates) AS usage_max"
        member = ", ".join(MEMBER)
        by_usage = f"-member.{member_at('usage')}, member.{member_at('user')}, member.{member_at('client_id')}"
        return f"""
SELECT {key}, any(m.elapsed_s) AS elapsed_s, max(m.covered) AS covered, sumForEach(m.rates) AS rates,
       maxForEach(m.sampled) AS sampled, sum(m.area) AS area,
       if(max(empty(m.mask)), emptyArrayUInt8(), maxForEach(m.mask)) AS mask,
       if(empty(mask), elapsed_s, toInt64(arraySum(arraySlice(mask, 1, elapsed_s)))) AS seconds,
       groupArrayArray(m.limits) AS limits, min(arrayMin(m.limits.1)) AS lowest, max(arrayMax(m.limits.1)) AS highest,
       groupArray(({member})) AS every_member,
       if(length(every_member) = 1, every_member, arraySort(member -> ({by_usage}), every_member)) AS members
FROM view(SELECT *, {own} FROM view({self._members()})) AS m
GROUP BY {key}"""  # noqa: S608 - made of our own words

    def usage(self) -> str:
        """Per client, broker and window its usage and that of its bucket: the columns of COLUMNS. A client whose bucket
        changes in a window is shown in the one that is nearest to its limit."""
        own = ", ".join(f"member.{member_at(name)} AS {name}" for name in MEMBER if name != "implied_limit")
        return f"""
SELECT {self._named_key}, user, client_id, broker_id, window_start_ms, toInt64(samples) AS samples,
       toFloat64(throttle_ms) AS throttle_ms, toFloat64(muted_ms) AS muted_ms, toInt32(elapsed_s) AS elapsed_s,
       toInt64(bytes) AS bytes, if(is_unexplained, 'unknown', of_rule) AS state,
       if(is_unexplained, NULL, rule_limit) AS limit, rule_limit, decided_by, implied_limit, entity AS matched_entity,
       bucket_user, bucket_client_id, usage, usage_p95, usage_max, group_usage, group_p95, group_last,
       toInt32(shared_with) AS shared_with, greediest_user, greediest_client_id, greediest_usage, members_usage,
       toInt32(usage_rank) AS usage_rank
FROM view(
    SELECT {self._key}broker_id, window_ms AS window_start_ms, state AS of_rule, row_limit, entity, bucket_user,
           bucket_client_id, elapsed_s, group_usage, group_p95, group_last, members_usage, greediest_user,
           greediest_client_id, greediest_usage, length(members) - 1 AS shared_with, usage_rank, {own},
           nullIf(member.{member_at("implied_limit")}, 0) AS implied_limit,
           if(row_limit < 0, NULL, row_limit) AS rule_limit,
           decided_by != '' OR ifNull(implied_limit < {UNEXPLAINED} * rule_limit, 0) AS is_unexplained
    FROM view({self.buckets()})
    ARRAY JOIN members AS member, arrayEnumerate(members) AS usage_rank
    ORDER BY indexOf(['unknown', 'none', 'limited'], state) DESC,
             {_fullness("row_limit", "greatest(group_usage, group_p95)")} DESC, bucket_user DESC, bucket_client_id DESC
    LIMIT 1 BY {self._key}user, client_id, broker_id, window_start_ms
)
"""  # noqa: S608 - made of our own words


MEMBER: Final = (
    "user", "client_id", "usage", "usage_p95", "usage_max", "samples", "throttle_ms", "muted_ms", "bytes",
    "decided_by", "implied_limit",
)  # fmt: skip


def member_at(name: str) -> int:
    """The position of a value in a tuple of MEMBER."""
    return MEMBER.index(name) + 1


def _newer(seen: str, limit: str) -> str:
    """Sort key of quotas: the one that came up later in the window, then the one seen last, then the lower limit."""
    strictness = f"if({limit} < 0, -inf, -{limit})"
    return f"arrayFirstIndex(s -> s > 0, {seen}), arrayLastIndex(s -> s > 0, {seen}), {strictness}"


def _once(quotas: str) -> str:
    """Each quota once, with the seconds in which any of the equal ones was seen."""
    same = "(each.1, each.2, each.3, each.4, each.5) = (one.1, one.2, one.3, one.4, one.5)"
    seen = f"arrayReduce('maxForEach', arrayFilter(each -> {same}, {quotas}).6)"
    distinct = f"arrayDistinct(arrayMap(each -> (each.1, each.2, each.3, each.4, each.5), {quotas}))"
    return f"arrayMap(one -> (one.1, one.2, one.3, one.4, one.5, {seen}), {distinct})"


def _held(quotas: str, seen: str, *, place_of: str = "") -> str:
    """Per second the number of the quota in force, of `quotas` in order of _newer: the last that was seen in it, else
    that of the last second before, else of the first after. With `place_of`, the number of its bucket in `places`."""
    seen_by = f"arrayMap((quota, number) -> arrayMap(s -> s * number, {seen}), {quotas}, arrayEnumerate({quotas}))"
    numbers = f"arrayReduce('maxForEach', {seen_by})"
    filled = f"arrayReverseFill(n -> n > 0, arrayFill(n -> n > 0, {numbers}))"
    if not place_of:
        return f"arrayMap(n -> if(n = 0, length({quotas}), n), {filled})"  # seen in no second: the newest
    places = f"arrayMap({place_of} -> indexOf(places, ({place_of}.1, {place_of}.4, {place_of}.5)), {quotas})"
    return f"arrayMap(n -> ({places})[if(n = 0, length({quotas}), n)], {filled})"


def _mean(covered: str, seconds: str) -> str:
    """Mean rate over all seconds if rows have intervals, else over sampled seconds only."""
    return f"if({covered}, area / (1000 * {seconds}), area / 1000 / greatest(arraySum(sampled), 1))"


def _p95(covered: str) -> str:
    """95th percentile over the same seconds."""
    all_seconds = "arraySlice(rates, 1, elapsed_s)"
    held = f"if(empty(mask), {all_seconds}, arrayFilter((rate, held) -> held > 0, {all_seconds}, "
    held += f"arrayResize(mask, length({all_seconds}), 1)))"
    sampled = "arrayFilter((rate, seen) -> seen > 0, rates, sampled)"
    return f"ifNotFinite(arrayReduce('quantileExact({P95})', if({covered}, {held}, {sampled})), 0)"


P95: Final = "0.95"


def _fullness(limit: str, rate: str) -> str:
    """Share of the limit; any rate exceeds a limit of 0."""
    return f"multiIf({limit} > 0, {rate} / {limit}, {limit} = 0 AND {rate} > 0, inf, 0)"


# (limit, entity, seconds in which any member's rows know it), the newer the later.
_LIMITS: Final = f"""if(lowest = highest, [], arraySort(each -> ({_newer("each.3", "each.1")}),
        arrayMap(value -> (value, arrayMin(arrayFilter(l -> l.1 = value, limits).2),
        arrayReduce('maxForEach', arrayFilter(l -> l.1 = value, limits).3)), arrayDistinct(limits.1))))"""


def _fullest_part() -> str:
    """(limit, entity, mean, p95) of the seconds with one limit of which the bucket takes the largest share."""
    within = "arrayMap(slot -> toUInt8(slot < elapsed_s), range(length(rates)))"
    held = f"arrayMap((counts, held) -> counts * held, {within}, arrayResize(mask, length(rates), 1))"
    counted = f"if(covered, {held}, sampled)"
    rates = f"""arrayFilter((rate, at, counts) -> at = number AND counts > 0, rates,
        arrayResize(in_force, length(rates), 1), {counted})"""
    parts = f"""arrayMap((each, of) -> (each.1, each.2, ifNotFinite(arrayAvg(of), 0),
        ifNotFinite(arrayReduce('quantileExact({P95})', of), 0), length(of)),
        known, arrayMap(number -> {rates}, arrayEnumerate(known)))"""
    fullness = _fullness("each.1", "greatest(each.3, each.4)")
    fullest = f"arraySort(each -> (each.5 = 0, -({fullness}), each.1), {parts})[1]"
    return f"arrayMap(each -> (each.1, each.2, each.3, each.4), [{fullest}])[1]"


_FULLEST_PART: Final = _fullest_part()


def store_minutes(*, divided: bool = False) -> str:
    """The INSERT that computes minutes of usage_1m. Parameters: those of WindowsQuery, computed_ms."""
    key = ", ".join(f"{{{name}:String}} AS {name}" for name in KEY)
    return f"""
INSERT INTO usage_1m
SELECT {key}, toDateTime(intDiv(window_ms, 1000)) AS window_start, user, client_id, broker_id,
       gateway_id, ip, cadence_s, limit_known, row_limit, entity, bucket_user, bucket_client_id, meter_rates,
       meter_area, meter_bytes, meter_samples, meter_throttle_ms, meter_muted, meter_muted_at, newest,
       fromUnixTimestamp64Milli({{computed_ms:Int64}}), meter_decided_by, meter_implied
FROM ({WindowsQuery(60, divided=divided).meters()})"""  # noqa: S608 - made of our own words
