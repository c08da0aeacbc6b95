-- Views about clients, their quotas and their telemetry.

-- The key as a number, by which silent_clients adds up rows in a third of the time that the names take.
ALTER TABLE headroom.client_instances
    ADD COLUMN IF NOT EXISTS `instance_key` UInt64 MATERIALIZED cityHash64(cluster, principal, client_id, client_instance_id)
        COMMENT 'the key of the table as a number' CODEC(NONE);

-- Instances that pushed, are late by more than two of their own intervals, said nothing of an end, and are not muted: a
-- muted client cannot push, so its silence is no fault of it.
CREATE VIEW IF NOT EXISTS headroom.silent_clients
(
    `cluster`            LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `user`               LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`          LowCardinality(String)  COMMENT 'client id of the requests',
    `client_instance_id` UUID                    COMMENT 'the instance, as KIP-714 names it',
    `software_name`      LowCardinality(String)  COMMENT 'client software as it named itself',
    `software_version`   LowCardinality(String)  COMMENT 'its version',
    `pushes`             UInt64                  COMMENT 'how often it pushed',
    `usual_s`            Float64                 COMMENT 'mean time between its pushes, in seconds',
    `last_seen`          DateTime64(3, 'UTC')    COMMENT 'when it was heard of last',
    `silent_s`           Float64                 COMMENT 'seconds since then'
) AS
SELECT
    i.cluster AS cluster, i.principal AS user, i.client_id AS client_id, i.client_instance_id AS client_instance_id,
    i.name AS software_name, i.version AS software_version, i.pushed AS pushes, i.usual AS usual_s, i.last AS last_seen,
    i.silent AS silent_s
FROM
(
    -- FINAL adds up the rows of an instance in the order of the table, without a hash table of all instances. Merging by
    -- names costs most of it, so that the subquery finds the few silent ones by their numbers before.
    SELECT cluster, principal, client_id, client_instance_id, software_name AS name, software_version AS version,
           c.pushes AS pushed, c.last_seen AS last,
           greatest(dateDiff('millisecond', first_seen, last) / 1000 / greatest(pushed - 1, 1), 10) AS usual,
           dateDiff('millisecond', last, now64(3, 'UTC')) / 1000 AS silent
    FROM headroom.client_instances AS c FINAL
    PREWHERE instance_key IN (
        SELECT instance_key
        FROM
        (
            SELECT instance_key, min(n.first_seen) AS first, max(n.last_seen) AS newest, sum(n.pushes) AS number,
                   max(n.terminated) AS ended
            FROM headroom.client_instances AS n
            GROUP BY instance_key
        )
        WHERE ended = 0 AND number >= 2 AND newest > now() - INTERVAL 1 DAY
          AND dateDiff('millisecond', newest, now64(3, 'UTC')) / 1000
              > 3 * greatest(dateDiff('millisecond', first, newest) / 1000 / greatest(number - 1, 1), 10)
    )
    WHERE terminated = 0 AND pushed >= 2 AND last > now() - INTERVAL 1 DAY AND silent > 3 * usual
) AS i
LEFT ANTI JOIN
(
    -- Who is in throttled_now, in a query that takes less time to plan.
    SELECT DISTINCT cluster, user, client_id
    FROM headroom.quota_usage_recent AS r
    WHERE minute BETWEEN toStartOfMinute(now('UTC') - INTERVAL 10 MINUTE) AND now('UTC') AND isFinite(r.throttle_ms)
      AND (r.throttle_ms > 0 OR r.muted_ms > 0)
      AND toUnixTimestamp64Milli(r.ts) + least(ceil(r.throttle_ms), 1e9)
          > toUnixTimestamp64Milli(now64(3, 'UTC')) - 60000
) AS t ON i.cluster = t.cluster AND i.principal = t.user AND i.client_id = t.client_id;

-- Each version of client software in client_instances, and what is known of it.
CREATE VIEW IF NOT EXISTS headroom.client_versions
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `library`          String                  COMMENT 'the library that pushes; a binding of librdkafka names itself',
    `library_version`  String                  COMMENT 'its version',
    `known_issue`      String                  COMMENT 'what is known to be wrong with this version; empty: nothing'
) AS
WITH
    libraries AS
    (
        SELECT
            *,
            multiIf(
                bound_version != '' OR software_name IN ('confluent-kafka-go', 'confluent-kafka-dotnet'), 'librdkafka',
                software_name = 'kgo', 'franz-go',
                software_name
            ) AS library,
            if(bound_version != '', bound_version, extract(software_version, '^v?(\\d+(?:\\.\\d+)+)')) AS library_version,
            arrayMap(part -> toUInt32OrZero(part), splitByChar('.', library_version)) AS numbers
        FROM
        (
            SELECT DISTINCT cluster, software_name, software_version,
                   extract(software_version, 'rdkafka-v?(\\d+(?:\\.\\d+)+)') AS bound_version
            FROM headroom.client_instances
        )
    ),
    issues AS
    (
        SELECT
            library, issue,
            arrayMap(part -> toUInt32(part), splitByChar('.', since)) AS first,
            arrayMap(part -> toUInt32(part), splitByChar('.', fixed_in)) AS fixed
        FROM headroom.known_client_issues
    )
SELECT
    cluster, software_name, software_version, library, library_version,
    arrayStringConcat(
        arrayMap(
            known -> tupleElement(known, 2),
            arrayFilter(
                known -> tupleElement(known, 1) = library AND numbers >= tupleElement(known, 3)
                         AND numbers < tupleElement(known, 4),
                (SELECT groupArray((library, issue, first, fixed)) FROM issues)
            )
        ),
        '; '
    ) AS known_issue
FROM libraries;

-- Client software with a known telemetry bug.
CREATE VIEW IF NOT EXISTS headroom.bad_client_versions
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `library`          String                  COMMENT 'the library that pushes; a binding of librdkafka names itself',
    `library_version`  String                  COMMENT 'its version',
    `instances`        UInt64                  COMMENT 'client instances heard of in 15 minutes',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when one of them was heard of last',
    `known_issue`      String                  COMMENT 'what is known to be wrong with this version'
) AS
SELECT i.cluster AS cluster, i.software_name AS software_name, i.software_version AS software_version,
       v.library AS library, v.library_version AS library_version, i.instances AS instances, i.seen AS last_seen,
       v.known_issue AS known_issue
FROM
(
    SELECT cluster, software_name, software_version, count() AS instances, max(newest) AS seen
    FROM
    (
        SELECT cluster, software_name, software_version, max(last_seen) AS newest
        FROM headroom.client_instances
        WHERE last_seen > now() - INTERVAL 15 MINUTE
          AND (software_name, software_version) IN
              (SELECT software_name, software_version FROM headroom.client_versions WHERE known_issue != '')
        GROUP BY cluster, software_name, software_version, principal, client_id, client_instance_id
        HAVING max(terminated) = 0
    )
    GROUP BY cluster, software_name, software_version
) AS i
INNER JOIN headroom.client_versions AS v
    ON i.cluster = v.cluster AND i.software_name = v.software_name AND i.software_version = v.software_version;

-- Two gateways in front of a cluster record a change each: a row that repeats the value before it is no change.
CREATE VIEW IF NOT EXISTS headroom.quota_changes
(
    `cluster`        LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `entity`         String                  COMMENT 'the quota entity, as user=alice, client-id=<default>',
    `user`           LowCardinality(String)  COMMENT 'its user: empty when no part of it, <default> for the default entity',
    `client_id`      LowCardinality(String)  COMMENT 'its client id, spelled the same',
    `ip`             LowCardinality(String)  COMMENT 'its address, spelled the same',
    `quota_key`      LowCardinality(String)  COMMENT 'what is limited',
    `changed_at`     DateTime64(3, 'UTC')    COMMENT 'when the change was seen',
    `before`         Nullable(Float64)       COMMENT 'value until then; NULL: there was none',
    `after`          Nullable(Float64)       COMMENT 'value since then; NULL: it was removed'
) AS
SELECT
    cluster,
    arrayStringConcat(arrayFilter(part -> part != '', [if(user = '', '', concat('user=', user)),
        if(client_id = '', '', concat('client-id=', client_id)), if(ip = '', '', concat('ip=', ip))]), ', ') AS entity,
    user, client_id, ip, quota_key, valid_from AS changed_at, previous AS before, value AS after
FROM
(
    SELECT
        cluster, user, client_id, ip, quota_key, valid_from, value,
        lagInFrame(value) OVER (PARTITION BY cluster, quota_key, user, client_id, ip ORDER BY valid_from
                                ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS previous
    FROM headroom.quota_limits FINAL
)
WHERE isNull(value) != isNull(previous) OR ifNull(value != previous, 0);

CREATE VIEW IF NOT EXISTS headroom.usage_by_user
(
    `cluster`      LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`    LowCardinality(String)  COMMENT 'what is measured',
    `user`         LowCardinality(String)  COMMENT 'user of the connection',
    `usage`        Float64                 COMMENT 'mean rate of the minute, of all its clients on all brokers',
    `bytes`        UInt64                  COMMENT 'bytes of the minute',
    `clients`      UInt64                  COMMENT 'client ids that were active',
    `throttled`    UInt64                  COMMENT 'how many of these were muted in the minute',
    `utilization`  Nullable(Float64)       COMMENT 'the highest of its quotas on any broker',
    `source`       LowCardinality(String)  COMMENT 'who measured: gateway or jmx',
    `window_start` DateTime('UTC')         COMMENT 'the newest minute that has ended'
) AS
WITH (SELECT (window_start, computed_at) FROM headroom.newest_minute) AS newest
SELECT
    cluster, quota_key, user, sum(u.usage) AS usage, sum(u.bytes) AS bytes, uniqExact(client_id) AS clients,
    uniqExactIf(client_id, muted_ms > 0) AS throttled, max(u.utilization) AS utilization, source, window_start
FROM headroom.headroom_minutes AS u
WHERE u.window_start = newest.1 AND u.computed_at = newest.2
GROUP BY cluster, quota_key, user, source, window_start;

-- The clients of the newest minute that has ended.
CREATE VIEW IF NOT EXISTS headroom.telemetry_coverage
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `status`           LowCardinality(String)  COMMENT 'pushes; asked: it got an instance id and pushed nothing in 15 minutes; never asked: its software knows no client telemetry, or has it switched off',
    `instances`        UInt32                  COMMENT 'client instances heard of in 15 minutes',
    `pushes`           UInt64                  COMMENT 'their pushes',
    `last_seen`        Nullable(DateTime64(3, 'UTC'))  COMMENT 'when telemetry was heard of last',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself',
    `software_version` LowCardinality(String)  COMMENT 'its version'
) AS
WITH (SELECT (window_start, computed_at) FROM headroom.newest_minute) AS newest
SELECT
    cluster, user, client_id, multiIf(pushes > 0, 'pushes', instances > 0, 'asked', 'never asked') AS status,
    any(m.instances) AS instances, any(m.pushes) AS pushes, if(instances = 0, NULL, any(m.last_seen)) AS last_seen,
    any(m.software_name) AS software_name, any(m.software_version) AS software_version
FROM headroom.headroom_minutes AS m
WHERE m.window_start = newest.1 AND m.computed_at = newest.2 AND source = 'gateway'
GROUP BY cluster, user, client_id;

-- Who shares a quota, of the clients of the newest minute that has ended: the buckets as the gateway wrote them with its
-- rows, and no reading of the rules of its own.
DROP VIEW IF EXISTS headroom.quota_groups;

CREATE VIEW IF NOT EXISTS headroom.quota_groups
(
    `cluster`         LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`       LowCardinality(String)  COMMENT 'what is limited',
    `group_user`      LowCardinality(String)  COMMENT 'metric tag user: rows equal in both tags share the quota at each broker',
    `group_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `user`            LowCardinality(String)  COMMENT 'user of the client',
    `client_id`       LowCardinality(String)  COMMENT 'client id of the client',
    `limit`           Nullable(Float64)       COMMENT 'the quota per broker',
    `matched_entity`  LowCardinality(String)  COMMENT 'the quota entity that won'
) AS
WITH (SELECT (window_start, computed_at) FROM headroom.newest_minute) AS newest
SELECT
    cluster, quota_key, bucket_user AS group_user, bucket_client_id AS group_client_id, user, client_id, m.`limit` AS `limit`,
    matched_entity
FROM headroom.headroom_minutes AS m
WHERE m.window_start = newest.1 AND m.computed_at = newest.2 AND is_worst AND source = 'gateway' AND limit_known
  AND isNotNull(m.`limit`);
