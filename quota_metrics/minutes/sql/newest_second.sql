-- The end of the newest second whose rows all gateways have stored that wrote in the last five seconds, 0 without one;
-- and the rows of the last minute.
SELECT ifNull(toInt64(toUnixTimestamp(minOrNullIf(newest, newest > fromUnixTimestamp64Milli({now_ms:Int64} - 5000)
                                                          AND source = 'gateway'))) + 1, 0) AS end_s,
       sum(samples) AS rows
FROM (
    SELECT cluster, gateway_id, toString(r.source) AS source, max(ts) AS newest, count() AS samples
    FROM quota_usage_recent AS r
    WHERE minute >= toStartOfMinute(fromUnixTimestamp64Milli({now_ms:Int64} - 60000))
      AND ts > fromUnixTimestamp64Milli({now_ms:Int64} - 60000) AND ts <= fromUnixTimestamp64Milli({now_ms:Int64})
    GROUP BY cluster, gateway_id, source
)
