-- The minutes that received rows since a time, with all their rows.
SELECT toInt64(toUnixTimestamp(minute)) AS window_s, count() AS rows
FROM quota_usage_recent
WHERE minute IN (
    SELECT DISTINCT r.minute FROM quota_usage_recent AS r
    WHERE r.received_at >= fromUnixTimestamp64Milli({since_ms:Int64})
      AND r.minute >= fromUnixTimestamp({first_s:Int64}) AND r.minute <= fromUnixTimestamp({last_s:Int64}))
GROUP BY minute
ORDER BY minute
