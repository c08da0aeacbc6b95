-- A client's minute that was computed again may be known under another quota or cadence now, which are in the key of
-- usage_1m: what is there under the earlier ones is not used any more. Readers leave it out by samples and throttle_ms.
INSERT INTO usage_1m
SELECT * REPLACE (arrayWithConstant(60, nan) AS rates, 0 AS area, 0 AS bytes, 0 AS samples, 0 AS throttle_ms,
                  emptyArrayInt32() AS muted_at_ms, emptyArrayUInt32() AS muted_ms, 0 AS implied_sum, 0 AS implied_samples,
                  fromUnixTimestamp64Milli({computed_ms:Int64}) AS computed_at)
FROM usage_1m FINAL
WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
  AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
  AND ({source:String} = '' OR source = {source:String})
  AND (samples > 0 OR throttle_ms > 0) AND computed_at < fromUnixTimestamp64Milli({computed_ms:Int64})
  -- Nearly always nothing was computed before, and the rest is not read.
  AND (SELECT count() FROM usage_1m WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
         AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
         AND computed_at < fromUnixTimestamp64Milli({computed_ms:Int64})) > 0
  AND (cluster, source, quota_key, window_start, user, client_id, broker_id, gateway_id, ip) IN (
    SELECT cluster, source, quota_key, window_start, user, client_id, broker_id, gateway_id, ip FROM usage_1m
    WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
      AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
      AND ({source:String} = '' OR source = {source:String})
      AND computed_at = fromUnixTimestamp64Milli({computed_ms:Int64}))
