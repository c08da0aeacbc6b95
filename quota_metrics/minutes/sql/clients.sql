-- What is known of the instances of each client.
SELECT cluster, toValidUTF8(i.user) AS user, toValidUTF8(i.client_id) AS client_id, software_name, software_version,
       instances, pushes, toUnixTimestamp64Milli(last_seen) AS last_seen_ms
FROM client_instances_now AS i
