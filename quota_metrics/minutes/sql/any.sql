-- A row if there are samples in a range.
SELECT 1 AS has_samples
FROM quota_usage_recent
WHERE minute BETWEEN toStartOfMinute(fromUnixTimestamp64Milli({from_ms:Int64})) AND fromUnixTimestamp64Milli({to_ms:Int64})
LIMIT 1
