-- The minutes of one slice: a range of time of one key, and of its clients an interval of the sorting key, which prunes
-- what is read, and one of client-ids. Both may be open.
SELECT * EXCEPT (newest, computed_at)
FROM usage_1m FINAL
WHERE window_start >= toDateTime(intDiv({from_ms:Int64}, 1000), 'UTC')
  AND window_start < toDateTime(intDiv({to_ms:Int64}, 1000), 'UTC')
  AND source = {source:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String}
  AND (samples > 0 OR throttle_ms > 0)
  AND (user > {from_user:String} OR (user = {from_user:String} AND client_id >= {from_client_id:String}))
  AND ({is_last:UInt8} OR user < {to_user:String}
       OR (user = {to_user:String} AND client_id < {to_client_id:String}))
  AND client_id >= {least_client_id:String}
  AND ({is_last_client_id:UInt8} OR client_id < {below_client_id:String})
