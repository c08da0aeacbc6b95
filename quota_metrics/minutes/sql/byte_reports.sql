-- What the instances of these clients report of their bytes, by window. The arrays of metric names are those of
-- quota_metrics/verdict/client_signals.py.
SELECT cluster, toValidUTF8(p.principal) AS user, toValidUTF8(p.client_id) AS client_id,
       toString(client_instance_id) AS instance,
       intDiv(toUnixTimestamp64Milli(ts), {window_ms:Int64}) * {window_ms:Int64} AS window_start_ms,
       sumIf(value, metric IN {outgoing_bytes:Array(String)}) AS sent,
       sumIf(value, metric IN {incoming_bytes:Array(String)}) AS received
FROM points AS p FINAL
WHERE {telemetry:UInt8}
  AND (metric IN {outgoing_bytes:Array(String)} OR metric IN {incoming_bytes:Array(String)})
  AND ts >= fromUnixTimestamp64Milli({since_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})
  AND isFinite(value) AND bitAnd(flags, 1) = 0 AND ({cluster:String} = '' OR cluster = {cluster:String})
  AND (cluster, principal, client_id) IN (
      SELECT n.cluster, n.principal, n.client_id FROM client_instances AS n
      WHERE n.first_seen >= fromUnixTimestamp64Milli({since_ms:Int64})
        AND ({cluster:String} = '' OR n.cluster = {cluster:String}))
GROUP BY cluster, user, client_id, instance, window_start_ms
