"""The SQL of the what-if form, over the rates per second of quota_usage_recent."""

from __future__ import annotations

# Of one cluster and quota key: those of the gateways, in whole minutes.
_RECORDED = """
    minute >= fromUnixTimestamp({from_s:UInt32}) AND minute < fromUnixTimestamp({to_s:UInt32})
    AND cluster = {cluster:String} AND source = 'gateway' AND quota_key = {quota_key:String}
"""
# Names are '' when the changed entity does not name them.
_NAMED = "({user:String} = '' OR user = {user:String}) AND ({client_id:String} = '' OR client_id = {client_id:String})"

# One row when the cluster has usage: ends at the first that it finds.
HAS_USAGE = f"""
SELECT 1 AS found
FROM headroom.quota_usage_recent
WHERE {_RECORDED}
LIMIT 1
"""  # noqa: S608 - made of our own words

CLUSTERS = """
SELECT DISTINCT cluster
FROM headroom.quota_usage_recent
WHERE minute >= fromUnixTimestamp({from_s:UInt32}) AND minute < fromUnixTimestamp({to_s:UInt32})
  AND source = 'gateway' AND quota_key = {quota_key:String}
ORDER BY cluster
"""

# Clients on a broker, those that the entity names first, then the busiest. {shared}: clients that may share a quota
# with them. Rows are added up by a number, which takes half of the time that the four names take.
SEEN = f"""
SELECT any(seen_user) AS user, any(seen_client_id) AS client_id, seen_broker AS broker_id, toString(seen_pair) AS pair,
       max(seen_named) AS is_named, max(muted) / 1000 AS muted_s, toFloat64(sum(samples)) AS samples,
       toFloat64(sum(transferred)) AS bytes, toFloat64(count() OVER ()) AS clients,
       toFloat64(sum(sum(transferred)) OVER ()) AS all_bytes
FROM
(
    SELECT any(u.user) AS seen_user, any(u.client_id) AS seen_client_id, any(u.broker_id) AS seen_broker,
           cityHash64(seen_user, seen_client_id) AS seen_pair, max({_NAMED}) AS seen_named, count() AS samples,
           sum(u.bytes) AS transferred, sum(if(u.interval_ms > 0, toFloat64(u.muted_ms), u.throttle_ms)) AS muted
    FROM headroom.quota_usage_recent AS u
    WHERE {_RECORDED} AND {{shared}}
    GROUP BY cityHash64(user, client_id, broker_id, gateway_id)
)
GROUP BY seen_pair, seen_broker
ORDER BY is_named DESC, bytes DESC, user, client_id, broker_id
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - made of our own words

EVERYONE = "1"
# Metric tags have the user, the client id or both: who shares a quota with a named client has one of its names.
SHARING = f"""
(user GLOBAL IN (SELECT DISTINCT user FROM headroom.quota_usage_recent WHERE {_RECORDED} AND {_NAMED})
 OR client_id GLOBAL IN (SELECT DISTINCT client_id FROM headroom.quota_usage_recent WHERE {_RECORDED} AND {_NAMED}))
"""  # noqa: S608 - made of our own words

# For how many seconds the clients of each bucket were above its limit together, and the highest rate / limit. `pairs`:
# hashes of (user, client id); `buckets` and `limits`: the bucket and limit of each. A row stands for the seconds of its
# interval.
OVER = f"""
SELECT toString(pair) AS pair, broker_id, toFloat64(sumIf(step_s, total > bound)) AS over_s, max(total / bound) AS peak
FROM
(
    SELECT transform(pair, {{pairs:Array(UInt64)}}, {{buckets:Array(UInt32)}}, toUInt32(0)) AS bucket, broker_id, slot,
           max(step) AS step_s, sum(rate_max) AS total, groupUniqArray(pair) AS members,
           any(transform(pair, {{pairs:Array(UInt64)}}, {{limits:Array(Float64)}}, toFloat64(0))) AS bound
    FROM
    (
        SELECT cityHash64(user, client_id) AS pair, broker_id, gateway_id,
               greatest(1, intDiv(u.interval_ms + 500, 1000)) AS step,
               intDiv(toUnixTimestamp(u.ts), step) * step AS slot, max(u.rate) AS rate_max
        FROM headroom.quota_usage_recent AS u
        WHERE {_RECORDED} AND pair IN {{pairs:Array(UInt64)}}
        GROUP BY pair, broker_id, gateway_id, step, slot
    )
    GROUP BY bucket, broker_id, slot
)
ARRAY JOIN members AS pair
GROUP BY pair, broker_id
"""  # noqa: S608 - made of our own words
