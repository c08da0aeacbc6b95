"""The SELECT that makes windows from samples of quota_usage: one row per client, broker and window.

Five steps, each a subquery of the next:

1. samples: usable rows; bare rows (interval_ms = 0) with every window that their throttle time overlaps;
2. meters: per client, gateway, address and cadence the mean rate of each second of a window, as an array;
3. clients: the sum of a client's meters; per second the longest muted time of its meters, and the union of the throttle
   times of bare rows;
4. segments: the parts of a window with different limits, from the rows themselves (`limit_known`) or from
   `quota_client_limits`, which holds the limits that Spark resolved;
5. buckets: per limit the sum of all clients that share it, second by second, and the client's worst segment.

Rates are summed per second before a mean or a quantile is taken, so clients need not run side by side and gateways
need not see the same seconds. Duplicates of a row do not count (FINAL).
"""

from __future__ import annotations

from spark_jobs.time_range import THROTTLE_LOOKBACK_MS

LARGEST_RATE = 1e15  # bytes per second; a rate above it is invalid, a limit above it counts as no limit

BAD_NUMBER = f"NOT (isFinite(rate) AND rate >= 0 AND rate <= {LARGEST_RATE:.0f} AND ifNull(limit >= 0, 1))"

# Six nested subqueries take the analyzer up to 2 CPU-seconds to plan, because it visits inner ones again for each
# expression. `view` and the earlier planner take 0.2; a server without that planner ignores the setting.
SETTINGS = "SETTINGS enable_analyzer = 0, short_circuit_function_evaluation = 'force_enable'"

# All rows of a query have one cluster, source and quota key: the steps do not group by these.
_KEY = "{cluster:String} AS cluster, {source:String} AS source, {quota_key:String} AS quota_key"
_CLIENT = "user, client_id, broker_id, window_ms"
_QUOTA = "limit_known, row_limit, entity, bucket_user, bucket_client_id"

OF_KEY = "source = {source:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String}"

# The clients of one slice of a divided window (`divisions`): an interval of the sorting key, which prunes what is read,
# and one of client-ids.
OF_CLIENTS = """
    (user > {from_user:String} OR (user = {from_user:String} AND client_id >= {from_client_id:String}))
    AND ({is_last:UInt8} OR user < {to_user:String}
         OR (user = {to_user:String} AND client_id < {to_client_id:String}))
    AND client_id >= {least_client_id:String}
    AND ({is_last_client_id:UInt8} OR client_id < {below_client_id:String})"""


# Rows before the range are read only for the time they mute within it: a union ignores duplicates, so no FINAL.
# A sample belongs to the window that contains its ts. `cadence_s` 0: a bare sample with unknown interval.
def _samples(*, divided: bool) -> str:
    usable = f"{OF_KEY} AND NOT ({BAD_NUMBER})" + (f" AND {OF_CLIENTS}" if divided else "")
    return f"""
SELECT toValidUTF8(q.user) AS user, toValidUTF8(q.client_id) AS client_id, broker_id, gateway_id, ip, bytes, rate,
       limit_known,
       ifNull(if(limit > {LARGEST_RATE:.0f}, -1, limit), -1) AS row_limit,
       toValidUTF8(matched_entity) AS entity, toValidUTF8(q.bucket_user) AS bucket_user,
       toValidUTF8(q.bucket_client_id) AS bucket_client_id, received_at,
       toUnixTimestamp64Milli(ts) AS at_ms, at_ms - at_ms % {{window_ms:Int64}} AS own_window_ms,
       if(interval_ms = 0, 0, greatest(1, least(intDiv(interval_ms + 500, 1000), intDiv({{window_ms:Int64}}, 1000))))
           AS cadence_s,
       least(interval_ms, {{window_ms:Int64}}) AS covered_ms,
       toInt64(if(isFinite(throttle_ms) AND throttle_ms > 0, ceil(least(throttle_ms, 1e9)), 0)) AS announced_ms,
       if(interval_ms = 0, announced_ms, 0) AS muted_for_ms, least(muted_ms, covered_ms) AS own_muted_ms,
       arrayJoin(if(at_ms >= {{from_ms:Int64}} AND at_ms + muted_for_ms <= own_window_ms + {{window_ms:Int64}},
                    [own_window_ms],
                    range(greatest(own_window_ms, {{from_ms:Int64}}),
                          least(at_ms + greatest(muted_for_ms, 1), {{to_ms:Int64}}),
                          {{window_ms:Int64}}))) AS window_ms,
       window_ms = own_window_ms AS own
FROM (
    SELECT * FROM headroom.quota_usage FINAL
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}})
      AND {usable}
    UNION ALL
    SELECT * FROM headroom.quota_usage
    WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {THROTTLE_LOOKBACK_MS})
      AND ts < fromUnixTimestamp64Milli({{from_ms:Int64}}) AND throttle_ms > 0 AND interval_ms = 0 AND {usable}
) AS q
"""  # noqa: S608 - made of our own words


def meters(window_s: int, *, divided: bool = False) -> str:
    """Per client, gateway, address and cadence the mean rate of each second of each window. Parameters: from_ms, to_ms
    (from on the grid), window_ms, source, cluster, quota_key; if `divided`, those of OF_CLIENTS."""
    # A row with a cadence of n seconds covers the n-second step of the window's grid that contains its ts.
    slot = "toUInt16(intDiv(intDiv(at_ms - window_ms, 1000), greatest(cadence_s, 1)) * greatest(cadence_s, 1))"
    return f"""
WITH if(own, {slot}, 0) AS slot, toUInt16(least(slot + greatest(cadence_s, 1), {window_s})) AS slot_end,
     slot_end - slot AS slots
SELECT {_CLIENT}, {_QUOTA}, gateway_id, ip, cadence_s,
       avgResample(0, {window_s}, 1)(rate, if(own, slot, -1)) AS meter_rates,
       sumIf(rate * covered_ms, own) AS meter_area, countIf(own) AS meter_samples,
       max(announced_ms) AS meter_throttle_ms,
       sumMapIf(mapFromArrays(range(slot, slot_end), arrayWithConstant(slots, own_muted_ms / slots)),
                own_muted_ms > 0) AS meter_muted_at,
       sumIf(bytes, own) AS meter_bytes, max(received_at) AS newest,
       intervalLengthSumStateIf(greatest(at_ms, window_ms),
           least(at_ms + muted_for_ms, window_ms + {{window_ms:Int64}}, {{to_ms:Int64}}),
           muted_for_ms > 0) AS meter_muted
FROM ({_samples(divided=divided)})
GROUP BY {_CLIENT}, {_QUOTA}, gateway_id, ip, cadence_s"""  # noqa: S608 - made of our own words


_STORED = """headroom.usage_1m FINAL
WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
  AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
  AND {of_key}""".replace("{of_key}", OF_KEY)


def _stored_meters(window_s: int, *, divided: bool) -> str:
    """The same, read from the rollup, for windows of whole minutes."""
    stored = _STORED + (f" AND {OF_CLIENTS}" if divided else "")
    minutes = window_s // 60
    key = "user, client_id, broker_id"
    quota = "limit_known, limit, matched_entity, bucket_user, bucket_client_id"
    meter = "limit_known, limit AS row_limit, matched_entity AS entity, bucket_user, bucket_client_id, cadence_s"
    if minutes == 1:  # each row is a window: no grouping
        return f"""
SELECT {key}, toInt64(toUnixTimestamp(window_start)) * 1000 AS window_ms, {meter}, gateway_id, ip,
       rates AS meter_rates, area AS meter_area, samples AS meter_samples, throttle_ms AS meter_throttle_ms,
       muted AS meter_muted, muted_at AS meter_muted_at
FROM {stored}
"""  # noqa: S608 - made of our own words
    return f"""
SELECT {key}, intDiv(toInt64(toUnixTimestamp(window_start)), {window_s}) * {window_s * 1000} AS window_ms, {meter},
       gateway_id, ip, groupArray(toUInt32(intDiv(toUnixTimestamp(window_start) % {window_s}, 60))) AS minutes,
       groupArray(rates) AS parts,
       arrayFlatten(arrayMap(minute -> if(has(minutes, minute), parts[indexOf(minutes, minute)],
                                          arrayWithConstant(60, nan)), range({minutes}))) AS meter_rates,
       sum(area) AS meter_area, sum(samples) AS meter_samples, max(throttle_ms) AS meter_throttle_ms,
       intervalLengthSumMergeState(muted) AS meter_muted,
       maxMap(mapApply((slot, ms) -> (toUInt16(slot + toUnixTimestamp(window_start) % {window_s}), ms), muted_at))
           AS meter_muted_at
FROM {stored}
GROUP BY {key}, window_ms, {quota}, cadence_s, gateway_id, ip
"""  # noqa: S608 - made of our own words


def store_minutes(*, divided: bool = False) -> str:
    """The INSERT that computes minutes of usage_1m. Parameters: those of `meters`, computed_ms."""
    return f"""
INSERT INTO headroom.usage_1m
SELECT {_KEY}, toDateTime(intDiv(window_ms, 1000)) AS window_start, user, client_id, broker_id,
       gateway_id, ip, cadence_s, limit_known, row_limit, entity, bucket_user, bucket_client_id, meter_rates,
       meter_area, meter_bytes, meter_samples, meter_throttle_ms, meter_muted, meter_muted_at, newest,
       fromUnixTimestamp64Milli({{computed_ms:Int64}})
FROM ({meters(60, divided=divided)})"""  # noqa: S608 - made of our own words


def _clients(window_s: int, *, stored: bool, divided: bool) -> str:
    slots = f"range({window_s})"
    # A lambda must not use an array of the row: it would be copied for each element.
    spread = f"arrayFill((rate, slot) -> slot % cadence_s = 0, meter_rates, {slots})"
    spread = f"if(cadence_s <= 1, meter_rates, {spread})"
    metered = _stored_meters(window_s, divided=divided) if stored else meters(window_s, divided=divided)
    return f"""
SELECT {_CLIENT}, {_QUOTA}, sumForEach(arrayMap(rate -> ifNotFinite(rate, 0), {spread})) AS client_rates,
       maxForEach(arrayMap(rate -> toUInt8(isFinite(rate)), {spread})) AS client_sampled,
       sum(if(cadence_s > 0, meter_area, 1000 * arraySum(arrayFilter(rate -> isFinite(rate), meter_rates))))
           AS client_area,
       max(cadence_s > 0) AS covered, sum(meter_samples) AS client_samples,
       max(meter_throttle_ms) AS client_throttle_ms,
       intervalLengthSumMergeState(meter_muted) AS client_muted, maxMap(meter_muted_at) AS client_muted_at
FROM view({metered})
GROUP BY {_CLIENT}, {_QUOTA}"""  # noqa: S608 - made of our own words


def _windows(window_s: int, *, stored: bool, divided: bool) -> str:
    """Per client and window the parts with different limits, ordered by time."""
    return f"""
SELECT {_CLIENT}, sum(client_samples) AS samples, max(client_throttle_ms) AS throttle_ms,
       intDiv(least({{window_ms:Int64}}, {{to_ms:Int64}} - window_ms) + 999, 1000) AS elapsed_s,
       least(intervalLengthSumMerge(client_muted) + toInt64(round(arraySum(mapValues(maxMap(client_muted_at))))),
             least({{window_ms:Int64}}, {{to_ms:Int64}} - window_ms)) AS muted_ms,
       groupArray((client_samples, limit_known, row_limit, entity, bucket_user, bucket_client_id,
                   client_rates, client_sampled, client_area, covered)) AS every_part,
       if(length(every_part) = 1, every_part, arraySort(part -> arrayFirstIndex(s -> s > 0, part.8),
          if(samples > 0, arrayFilter(part -> part.1 > 0, every_part), [every_part[1]]))) AS parts
FROM view({_clients(window_s, stored=stored, divided=divided)}) AS c
GROUP BY {_CLIENT}"""  # noqa: S608 - made of our own words


def _limits(*, divided: bool) -> str:
    """Limits that Spark resolved for clients whose rows do not carry them."""
    of_clients = f" AND {OF_CLIENTS}" if divided else ""
    return f"""
SELECT user, client_id,
       arraySort(groupUniqArray((from_ms, to_ms, toString(state), limit, matched_entity, bucket_user,
                                 bucket_client_id))) AS epochs
FROM headroom.quota_client_limits
WHERE run = {{run:String}} AND cluster = {{cluster:String}} AND quota_key = {{quota_key:String}}
  AND from_ms < {{to_ms:Int64}} AND to_ms > {{from_ms:Int64}}{of_clients}
GROUP BY user, client_id"""  # noqa: S608 - made of our own words


# Segments: (first second, end, state, limit, entity, bucket_user, bucket_client_id, part)
_KNOWN_SEGMENTS = """arrayMap((part, number) -> (
        if(number = 1, 0, toInt64(arrayFirstIndex(s -> s > 0, part.8)) - 1),
        if(number = length(parts), elapsed_s, toInt64(arrayFirstIndex(s -> s > 0, parts[number + 1].8)) - 1),
        if(part.3 < 0, 'none', 'limited'), part.3, part.4,
        if(part.3 < 0, user, part.5), if(part.3 < 0, client_id, part.6), part), parts, arrayEnumerate(parts))"""
_RESOLVED_SEGMENTS = """arrayMap(e -> (
        toInt64(intDiv(greatest(e.1, window_ms) - window_ms + 999, 1000)),
        toInt64(intDiv(least(e.2, window_ms + elapsed_s * 1000) - window_ms + 999, 1000)),
        e.3, e.4, e.5, e.6, e.7, parts[1]),
        arrayFilter(e -> e.1 < window_ms + elapsed_s * 1000 AND e.2 > window_ms, l.epochs))"""
_UNRESOLVED = "[(toInt64(0), toInt64(elapsed_s), 'unknown', toFloat64(-1), '', user, client_id, parts[1])]"


def _segments(window_s: int, *, stored: bool, divided: bool) -> str:
    """Per client and window the segments with one limit each; rates outside the segment are 0."""
    slots = f"range({window_s})"
    return f"""
SELECT {_CLIENT}, samples, throttle_ms, muted_ms, segment.1 AS first_s, segment.2 AS end_s, segment.3 AS state,
       segment.4 AS row_limit, segment.5 AS entity, segment.6 AS bucket_user, segment.7 AS bucket_client_id,
       segment.8 AS part, part.10 AS covered, first_s = 0 AND end_s = elapsed_s AS whole,
       if(whole, part.7, arrayMap((rate, slot) -> if(slot >= first_s AND slot < end_s, rate, 0), part.7, {slots}))
           AS rates,
       if(whole, part.8, arrayMap((seen, slot) -> toUInt8(seen AND slot >= first_s AND slot < end_s), part.8, {slots}))
           AS sampled,
       if(whole, part.9, 1000 * arraySum(rates)) AS area
FROM (
    SELECT {_CLIENT}, samples, throttle_ms, muted_ms, elapsed_s,
           arrayJoin(if(parts[1].2 > 0, {_KNOWN_SEGMENTS},
                        if(empty(l.epochs), {_UNRESOLVED}, {_RESOLVED_SEGMENTS}))) AS segment
    FROM view({_windows(window_s, stored=stored, divided=divided)}) AS w
    LEFT JOIN ({_limits(divided=divided)}) AS l USING (user, client_id)
)
WHERE end_s > first_s"""  # noqa: S608 - made of our own words


def _mean(covered: str) -> str:
    """Mean rate of a segment over all seconds if rows have intervals, else over sampled seconds only."""
    return f"if({covered}, area / (1000 * (end_s - first_s)), area / 1000 / greatest(arraySum(sampled), 1))"


def _p95(covered: str) -> str:
    """95th percentile of a segment over the same seconds."""
    seconds = f"if({covered}, arraySlice(rates, first_s + 1, end_s - first_s),"
    seconds += " arrayFilter((rate, seen) -> seen > 0, rates, sampled))"
    return f"ifNotFinite(arrayReduce('quantileExact(0.95)', {seconds}), 0)"


def buckets(window_s: int, *, stored: bool, divided: bool = False) -> str:
    """Per bucket, broker and window the per-second sum of its members; members ordered by usage, highest first."""
    measured = f"{_mean('covered')} AS own_mean, {_p95('covered')} AS own_p95, arrayMax(rates) AS own_max"
    return f"""
SELECT {_KEY}, broker_id, window_ms, state, row_limit, any(entity) AS entity, bucket_user,
       bucket_client_id, min(s.first_s) AS first_s, max(s.end_s) AS end_s, max(s.covered) AS any_covered,
       sumForEach(s.rates) AS rates, maxForEach(s.sampled) AS sampled, sum(s.area) AS area,
       {_mean("any_covered")} AS group_usage, {_p95("any_covered")} AS group_p95,
       if(any_covered, end_s, toInt64(arrayLastIndex(seen -> seen > 0, sampled))) AS newest,
       arrayMax(arraySlice(rates, greatest(newest - 1, 1), 2)) AS group_last,
       arrayReverseSort(member -> (member.3, member.1, member.2), groupArray(
           (user, client_id, s.own_mean, s.own_p95, s.own_max, samples, throttle_ms, muted_ms))) AS members,
       members[1] AS greediest
FROM (SELECT *, {measured} FROM view({_segments(window_s, stored=stored, divided=divided)})) AS s
GROUP BY broker_id, window_ms, state, row_limit, bucket_user, bucket_client_id
"""  # noqa: S608 - made of our own words


def _worst_segments(window_s: int, *, stored: bool, divided: bool) -> str:
    """Per client, broker and window the segment in which its bucket is closest to the limit."""
    return f"""
SELECT member.1 AS user, member.2 AS client_id, broker_id, window_ms AS window_start_ms,
       any(member.6) AS samples, any(member.7) AS throttle_ms, any(member.8) AS muted_ms,
       argMax((state, row_limit, entity, bucket_user, bucket_client_id, member.3, member.4, member.5, group_usage,
               group_p95, length(members) - 1, greediest.1, greediest.2, greediest.3, position,
               group_last),
              (indexOf(['unknown', 'none', 'limited'], state), if(row_limit > 0, greatest(group_usage, group_p95)
               / row_limit, 0))) AS worst
FROM view({buckets(window_s, stored=stored, divided=divided)})
ARRAY JOIN members AS member, arrayEnumerate(members) AS position
GROUP BY user, client_id, broker_id, window_ms
"""  # noqa: S608 - made of our own words


def usage(window_s: int, *, stored: bool = False, divided: bool = False) -> str:
    """The query for windows of `window_s` seconds; `stored`: from usage_1m, windows of whole minutes; `divided`: some
    of the clients only. It needs SETTINGS at the end of the whole statement.

    Parameters: from_ms, to_ms (from on the grid), window_ms, source, cluster, quota_key, run; if `divided`, those of
    OF_CLIENTS."""
    return f"""
SELECT {_KEY}, user, client_id, broker_id, window_start_ms, toInt64(samples) AS samples,
       toFloat64(throttle_ms) AS throttle_ms, toFloat64(muted_ms) AS muted_ms, worst.1 AS state,
       if(worst.2 < 0, NULL, worst.2) AS limit, worst.3 AS matched_entity, worst.4 AS bucket_user,
       worst.5 AS bucket_client_id, worst.6 AS usage_avg, worst.7 AS usage_p95, worst.8 AS usage_max,
       worst.9 AS group_usage, worst.10 AS group_p95, toInt32(worst.11) AS shared_with, worst.12 AS greediest_user,
       worst.13 AS greediest_client_id, worst.14 AS greediest_usage,
       toInt32(worst.15) AS usage_rank, toFloat64(worst.16) AS group_last
FROM view({_worst_segments(window_s, stored=stored, divided=divided)})
"""  # noqa: S608 - made of our own words
