-- What the minutes before one leave for it: each client at each broker in the minute before, and on its worst broker in
-- the nine before that, of the newest computation of each minute. Oldest first.
SELECT cluster, source, quota_key, user, client_id, toInt64(toUnixTimestamp(window_start)) * 1000 AS start_ms, broker_id,
       is_worst, greatest(ifNull(utilization, 0), ifNull(utilization_p95, 0)) AS value, muted_ms, is_onset, cause,
       own_cause, `limit`, limit_known, usage, group_usage, bucket_user, bucket_client_id, culprit_user, culprit_client_id,
       culprit_share
FROM headroom_minutes
WHERE window_start >= fromUnixTimestamp({minute_s:Int64} - 600) AND window_start < fromUnixTimestamp({minute_s:Int64})
  AND (is_worst OR window_start = fromUnixTimestamp({minute_s:Int64} - 60))
  AND (window_start, computed_at) IN (
      SELECT m.window_start, max(m.computed_at) FROM headroom_minutes AS m
      WHERE m.window_start >= fromUnixTimestamp({minute_s:Int64} - 600)
        AND m.window_start < fromUnixTimestamp({minute_s:Int64})
      GROUP BY m.window_start)
ORDER BY window_start
