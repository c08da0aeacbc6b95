-- The instances of clients that may be there since {seen_from_ms}: the last push of each, and how often it pushed. With
-- {since_ms} only those of clients of which one was seen first since then; 0: of all. A replayed push changes none of
-- these but `pushes`.
SELECT cluster, toValidUTF8(i.principal) AS user, toValidUTF8(i.client_id) AS client_id,
       toString(client_instance_id) AS instance, toUnixTimestamp64Milli(min(i.first_seen)) AS first_ms,
       toUnixTimestamp64Milli(max(i.last_seen)) AS last_ms, toInt64(sum(i.pushes)) AS pushes,
       toInt64(max(i.terminated)) AS terminated,
       toValidUTF8(argMax((i.software_name, i.software_version), i.last_seen).1) AS software_name,
       toValidUTF8(argMax((i.software_name, i.software_version), i.last_seen).2) AS software_version,
       toString(argMax(i.source_address, i.last_seen)) AS address
FROM client_instances AS i
WHERE ({cluster:String} = '' OR cluster = {cluster:String})
  AND ({since_ms:Int64} = 0 OR (cluster, principal, client_id) IN (
      SELECT n.cluster, n.principal, n.client_id FROM client_instances AS n
      WHERE n.first_seen >= fromUnixTimestamp64Milli({since_ms:Int64})
        AND ({cluster:String} = '' OR n.cluster = {cluster:String})))
GROUP BY cluster, user, client_id, instance
HAVING first_ms < {to_ms:Int64} AND last_ms >= {seen_from_ms:Int64}
