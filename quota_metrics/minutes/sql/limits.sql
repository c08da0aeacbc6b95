-- The history of limits of quota_keys before to_ms; a null value means removal. Rows of addresses carry their limit.
SELECT cluster, toValidUTF8(l.user) AS user, toValidUTF8(l.client_id) AS client_id, '' AS ip, quota_key,
       toUnixTimestamp64Milli(valid_from) AS valid_from_ms, value
FROM quota_limits AS l FINAL
WHERE l.ip = '' AND valid_from < fromUnixTimestamp64Milli({to_ms:Int64})
  AND ({cluster:String} = '' OR cluster = {cluster:String})
  AND has({quota_keys:Array(String)}, toString(quota_key))
