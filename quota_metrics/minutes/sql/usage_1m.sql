-- Rows of usage_1m: per client, broker, gateway and minute the mean rate of each second, and what else windows need.
--
-- Minutes are steps of 60 s from from_ms on. A sample belongs to the minute and second that contain its ts; one with an
-- interval of n seconds stands at the first second of its step of n seconds. Bare samples (interval_ms = 0) announce
-- throttle times that reach into later minutes: these count there too. That is a union of spans, to which duplicates of
-- a sample add nothing, so these are read without FINAL.
SELECT
    cluster, toString(origin) AS source, quota_key, toDateTime(intDiv(minute_ms, 1000), 'UTC') AS window_start,
    toValidUTF8(s.user) AS user, toValidUTF8(s.client_id) AS client_id, broker_id, gateway_id, ip, cadence AS cadence_s,
    limit_known, row_limit AS `limit`, toValidUTF8(s.matched_entity) AS matched_entity, toValidUTF8(s.bucket_user) AS bucket_user,
    toValidUTF8(s.bucket_client_id) AS bucket_client_id,
    avgResample(0, 60, 1)(rate, slot) AS rates, sum(row_area) AS area, sum(own * s.bytes) AS bytes, sum(own) AS samples,
    toFloat64(max(announced_ms)) AS throttle_ms,
    groupArrayIf(toInt32(at_ms), length_ms > 0) AS muted_at_ms, groupArrayIf(length_ms, length_ms > 0) AS muted_ms,
    max(received_at) AS newest, fromUnixTimestamp64Milli({computed_ms:Int64}, 'UTC') AS computed_at,
    toValidUTF8(maxIf(decider, decider != '')) AS decided_by,
    sumIf(implied, implied > 0) AS implied_sum, countIf(implied > 0) AS implied_samples
FROM (
    SELECT cluster, source AS origin, quota_key, minute_ms, user, client_id, broker_id, gateway_id, ip, limit_known,
           ifNull(if(`limit` > {{largest_rate}}, -1, `limit`), -1) AS row_limit, matched_entity, bucket_user,
           bucket_client_id, rate, received_at, own, bytes,
           toUnixTimestamp64Milli(ts) - minute_ms AS at_ms, decided_by AS decider,
           toUInt32(least(greatest(intDiv(interval_ms + 500, 1000), interval_ms > 0), 60)) AS cadence,
           if(own, intDiv(at_ms, 1000) - intDiv(at_ms, 1000) % greatest(cadence, 1), -1) AS slot,
           own * rate * least(interval_ms, 60000) AS row_area,
           if(isFinite(throttle_ms) AND throttle_ms > 0, toInt64(ceil(least(throttle_ms, 1e9))), 0) AS announced_ms,
           if(muted_ms = 0 AND gateway_id = '', announced_ms, toInt64(muted_ms)) AS muted, -- others may not count it
           toUInt32(if(interval_ms = 0, least(announced_ms, {{muted_lookback_ms}}),
                       least(muted, least(interval_ms, 60000)))) AS length_ms, -- of three numbers it goes row by row
           if(own AND isFinite(implied_limit) AND implied_limit <= {{largest_rate}}, implied_limit, 0) AS implied
    FROM (
        SELECT *, 1 AS own,
               {from_ms:Int64} + if({{is_recent}}, 0, -- is asked for one minute
                   intDiv(toUnixTimestamp64Milli(ts) - {from_ms:Int64}, 60000) * 60000) AS minute_ms
        FROM {{samples}} {{final}}
        WHERE {{pruned}} ts >= fromUnixTimestamp64Milli({from_ms:Int64})
          AND ts < fromUnixTimestamp64Milli({to_ms:Int64})
        UNION ALL
        SELECT *, 0 AS own,
               arrayJoin(range(
                   {from_ms:Int64}
                       + greatest(intDiv(toUnixTimestamp64Milli(ts) - {from_ms:Int64} + 60000, 60000), 0) * 60000,
                   least(toUnixTimestamp64Milli(ts) + toInt64(ceil(least(throttle_ms, {{muted_lookback_ms}}))),
                         {to_ms:Int64}),
                   60000)) AS minute_ms
        FROM {{samples}}
        WHERE {{pruned_before}} interval_ms = 0 AND throttle_ms > 0 AND isFinite(throttle_ms)
          AND ts >= fromUnixTimestamp64Milli({from_ms:Int64} - {{muted_lookback_ms}})
          AND ts < fromUnixTimestamp64Milli({to_ms:Int64})
    )
    WHERE ({{is_recent}} -- quota_usage_recent_feed takes no others
           OR (isFinite(rate) AND rate >= 0 AND rate <= {{largest_rate}} AND ifNull(`limit` >= 0, 1)))
      AND ({source:String} = '' OR toString(source) = {source:String})
      AND ({cluster:String} = '' OR cluster = {cluster:String})
) AS s
GROUP BY cluster, origin, quota_key, minute_ms, s.user, s.client_id, broker_id, gateway_id, ip, cadence, limit_known,
         row_limit, s.matched_entity, s.bucket_user, s.bucket_client_id
{{settings}}
