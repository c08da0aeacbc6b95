-- Which clients share a quota: the clients of the last day's usage, resolved against the quotas that are in force.
--
-- The eight levels of Kafka's default callback, as quota_metrics/resolution.py has them; a cluster with a callback of
-- its own is not meant here. group_user and group_client_id are the metric tags (the user not percent-encoded) under
-- which a broker meters: rows that are equal in them, quota_key and cluster share one quota at each broker. Clients
-- without a quota are not listed. A quota on bytes concerns who produces or consumes, the others concern everyone.
CREATE VIEW IF NOT EXISTS headroom.quota_groups AS
WITH
    limits AS
    (
        SELECT cluster, quota_key, user, client_id, argMax(tuple(value), valid_from).1 AS value
        FROM headroom.quota_limits
        WHERE ip = ''
        GROUP BY cluster, quota_key, user, client_id
        HAVING isNotNull(value)
    ),
    clients AS
    (
        SELECT cluster, user, client_id, groupUniqArray(quota_key) AS used
        FROM headroom.quota_usage
        WHERE source = 'gateway' AND ts > now() - INTERVAL 1 DAY
        GROUP BY cluster, user, client_id
    ),
    candidates AS
    (
        -- level, user and client-id of the quota's entity; a name that reads as 'absent' or 'default' is no name here
        SELECT
            cluster, user, client_id, used,
            tupleElement(candidate, 1) AS level,
            tupleElement(candidate, 2) AS entity_user,
            tupleElement(candidate, 3) AS entity_client_id
        FROM clients
        ARRAY JOIN arrayFilter(
            candidate -> tupleElement(candidate, 4),
            [
                (1, user, client_id, user NOT IN ('', '<default>') AND client_id NOT IN ('', '<default>')),
                (2, user, '<default>', user NOT IN ('', '<default>') AND client_id != ''),
                (3, user, '', user NOT IN ('', '<default>')),
                (4, '<default>', client_id, user != '' AND client_id NOT IN ('', '<default>')),
                (5, '<default>', '<default>', user != '' AND client_id != ''),
                (6, '<default>', '', user != ''),
                (7, '', client_id, client_id NOT IN ('', '<default>')),
                (8, '', '<default>', client_id != '')
            ]
        ) AS candidate
    )
SELECT
    c.cluster AS cluster,
    l.quota_key AS quota_key,
    if(min(c.level) IN (7, 8), '', c.user) AS group_user,
    if(min(c.level) IN (3, 6), '', c.client_id) AS group_client_id,
    c.user AS user,
    c.client_id AS client_id,
    argMin(l.value, c.level) AS `limit`,
    argMin(c.entity_user, c.level) AS entity_user,
    argMin(c.entity_client_id, c.level) AS entity_client_id
FROM candidates AS c
INNER JOIN limits AS l ON l.cluster = c.cluster AND l.user = c.entity_user AND l.client_id = c.entity_client_id
WHERE has(c.used, l.quota_key) OR l.quota_key NOT IN ('producer_byte_rate', 'consumer_byte_rate')
GROUP BY c.cluster, l.quota_key, c.user, c.client_id;
