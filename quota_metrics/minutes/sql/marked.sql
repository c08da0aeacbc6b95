-- The sources of which a minute was computed before.
SELECT DISTINCT toString(source) AS source FROM usage_1m_windows
WHERE window_start = toDateTime(intDiv({from_ms:Int64}, 1000))
