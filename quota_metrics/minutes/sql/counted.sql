-- Per source and minute the usable rows, the newest of them, the other rows by cluster, and whether usage_1m was made
-- of fewer or older ones (`is_dirty`). Samples of a minute only become more, until they go for their age: fewer ones than
-- the mark says are no reason to compute it again.
WITH isFinite(rate) AND rate >= 0 AND rate <= {{largest_rate}} AND ifNull(`limit` >= 0, 1) AS is_usable
SELECT u.origin AS source, u.minute_ms AS minute_ms, u.rows AS rows, u.newest_ms AS newest_ms, u.bad_rows AS bad_rows,
       rows > w.marked_rows OR newest_ms > w.marked_ms OR arraySum(mapValues(bad_rows)) > w.marked_bad AS is_dirty
FROM (
    SELECT origin, minute_ms, sum(usable) AS rows, max(newest) AS newest_ms,
           mapFromArrays(groupArrayIf(cluster, bad > 0), groupArrayIf(bad, bad > 0)) AS bad_rows
    FROM (
        SELECT toString(source) AS origin, intDiv(toUnixTimestamp64Milli(ts), 60000) * 60000 AS minute_ms,
               toString(cluster) AS cluster, countIf(is_usable) AS usable, count() - usable AS bad,
               toUnixTimestamp64Milli(max(received_at)) AS newest
        FROM quota_usage
        WHERE ts >= fromUnixTimestamp64Milli({from_ms:Int64})
          AND ts < fromUnixTimestamp64Milli({to_ms:Int64})
          AND ({source:String} = '' OR toString(source) = {source:String})
        GROUP BY origin, minute_ms, cluster
    )
    GROUP BY origin, minute_ms
) AS u
LEFT JOIN (
    SELECT toString(source) AS origin, toInt64(toUnixTimestamp(window_start)) * 1000 AS minute_ms, rows AS marked_rows,
           toUnixTimestamp64Milli(newest) AS marked_ms, arraySum(mapValues(bad_rows)) AS marked_bad
    FROM usage_1m_windows FINAL
    WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
      AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
) AS w USING (origin, minute_ms)
ORDER BY source, minute_ms
