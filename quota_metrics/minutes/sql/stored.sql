-- Minutes of usage_1m, as `usage_1m.sql` made them.
SELECT * EXCEPT (newest, computed_at)
FROM usage_1m FINAL
WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000))
  AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000))
  AND ({source:String} = '' OR source = {source:String}) AND (samples > 0 OR throttle_ms > 0)
