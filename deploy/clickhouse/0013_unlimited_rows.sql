-- producer_byte_rate = Long.MAX_VALUE is a usual way to write "unlimited". Rows with such a limit stay, as rows without a
-- limit. Bad limits are NaN and negative ones.
ALTER TABLE headroom.quota_usage_recent_feed MODIFY QUERY
SELECT toStartOfMinute(q.ts) AS minute, q.cluster AS cluster, q.source AS source, q.quota_key AS quota_key, q.ts AS ts,
       q.user AS user, q.client_id AS client_id, q.ip AS ip, q.broker_id AS broker_id, q.gateway_id AS gateway_id,
       q.bytes AS bytes, q.rate AS rate, q.throttle_ms AS throttle_ms, q.interval_ms AS interval_ms,
       if(q.`limit` > 1e15, NULL, q.`limit`) AS `limit`, q.limit_known AS limit_known,
       q.matched_entity AS matched_entity, q.bucket_user AS bucket_user, q.bucket_client_id AS bucket_client_id,
       q.received_at AS received_at
FROM headroom.quota_usage AS q
WHERE q.ts > now() - INTERVAL 6 HOUR AND q.ts < now() + INTERVAL 1 HOUR
  AND isFinite(q.rate) AND q.rate BETWEEN 0 AND 1e15 AND ifNull(q.`limit` >= 0, 1);
