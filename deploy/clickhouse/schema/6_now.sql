-- Who is near a limit or throttled now, and what else the newest minutes say of clients, users and quotas.

-- Each client on its worst broker in the last 60 seconds, as `headroom serve` computed them
-- (headroom_live, headroom_minutes).
CREATE VIEW IF NOT EXISTS {{database}}.headroom_now
(
{{columns_of_minute}},
    `client_place`     UInt32                  COMMENT 'place of the client among those of the minute by cluster, user and client id: sorts as these do, in less time'
) AS
SELECT * EXCEPT (computed_at, is_worst, pushes, last_seen, is_onset, own_reason, own_cause)
FROM {{database}}.newest_rows
WHERE is_worst;

-- Clients at level warn or worse.
CREATE VIEW IF NOT EXISTS {{database}}.near_limit
(
{{columns_of_minute}}
) AS
SELECT * EXCEPT (client_place)
FROM {{database}}.headroom_now WHERE level >= 'warn';

-- Who is muted at this moment or was in the last minute. Not of whole minutes: the newest row counts.
CREATE VIEW IF NOT EXISTS {{database}}.throttled_now
(
    `cluster`        LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`      LowCardinality(String)  COMMENT 'the quota that throttles',
    `user`           LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`      LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`      Int32                   COMMENT 'the broker that throttles',
    `is_muted`       UInt8                   COMMENT '1: the last announced throttle time has not passed yet',
    `throttle_ms`    Float64                 COMMENT 'longest throttle time of the last ten minutes',
    `muted_ms`       Int64                   COMMENT 'how long it was muted in the last minute',
    `muted_until`    DateTime64(3, 'UTC')    COMMENT 'when the last announced throttle time passes',
    `throttled_since` DateTime64(3, 'UTC')   COMMENT 'first throttle time in the last ten minutes',
    `limit`          Nullable(Float64)       COMMENT 'the quota per broker, as the newest throttled row had it',
    `matched_entity` LowCardinality(String)  COMMENT 'the quota entity that won',
    `source`         LowCardinality(String)  COMMENT 'who measured: gateway or jmx'
) AS
WITH toUnixTimestamp64Milli(now64(3, 'UTC')) AS now_ms
SELECT
    cluster, quota_key, user, client_id, broker_id, toUInt8(max(until_ms) > now_ms) AS is_muted,
    max(longest_ms) AS throttle_ms,
    toInt64(sum(muted_in_second)) + toInt64(intervalLengthSumMerge(bare_muted)) AS muted_ms,
    fromUnixTimestamp64Milli(toInt64(max(until_ms)), 'UTC') AS muted_until, min(first_ts) AS throttled_since,
    argMax(quota, last_ts).1 AS `limit`, argMax(quota, last_ts).2 AS matched_entity, toString(by_second.source) AS source
FROM
(
    SELECT
        cluster, quota_key, user, client_id, broker_id, r.source AS source, toStartOfSecond(r.ts) AS second,
        max(toUnixTimestamp64Milli(ts) + least(ceil(r.throttle_ms), 1e9)) AS until_ms, max(r.throttle_ms) AS longest_ms,
        maxIf(least(r.muted_ms, r.interval_ms), toUnixTimestamp64Milli(ts) > now_ms - 60000) AS muted_in_second,
        intervalLengthSumStateIf(
            toFloat64(greatest(toUnixTimestamp64Milli(ts), now_ms - 60000)),
            least(toUnixTimestamp64Milli(ts) + least(ceil(r.throttle_ms), 1e9), toFloat64(now_ms)),
            interval_ms = 0 AND toUnixTimestamp64Milli(ts) + r.throttle_ms > now_ms - 60000) AS bare_muted,
        min(ts) AS first_ts, max(ts) AS last_ts, argMax((r.`limit`, r.matched_entity), ts) AS quota
    FROM {{database}}.quota_usage_recent AS r
    WHERE minute BETWEEN toStartOfMinute(now('UTC') - INTERVAL 10 MINUTE) AND now('UTC') AND isFinite(r.throttle_ms)
      AND (r.throttle_ms > 0 OR r.muted_ms > 0)
    GROUP BY cluster, quota_key, user, client_id, broker_id, source, second
) AS by_second
GROUP BY cluster, quota_key, user, client_id, broker_id, by_second.source
HAVING max(until_ms) > now_ms - 60000
SETTINGS {{settings_of_views}};

-- Instances that pushed, are late by more than two of their own intervals, said nothing of an end, and are not muted: a
-- muted client cannot push, so its silence is no fault of it.
CREATE VIEW IF NOT EXISTS {{database}}.silent_clients
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
    FROM {{database}}.client_instances AS c FINAL
    PREWHERE instance_key IN (
        SELECT instance_key
        FROM
        (
            SELECT instance_key, min(n.first_seen) AS first, max(n.last_seen) AS newest, sum(n.pushes) AS number,
                   max(n.terminated) AS ended
            FROM {{database}}.client_instances AS n
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
    FROM {{database}}.quota_usage_recent AS r
    WHERE minute BETWEEN toStartOfMinute(now('UTC') - INTERVAL 10 MINUTE) AND now('UTC') AND isFinite(r.throttle_ms)
      AND (r.throttle_ms > 0 OR r.muted_ms > 0)
      AND toUnixTimestamp64Milli(r.ts) + least(ceil(r.throttle_ms), 1e9)
          > toUnixTimestamp64Milli(now64(3, 'UTC')) - 60000
) AS t ON i.cluster = t.cluster AND i.principal = t.user AND i.client_id = t.client_id
SETTINGS {{settings_of_views}};

CREATE VIEW IF NOT EXISTS {{database}}.usage_by_user
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
    `window_start` DateTime('UTC')         COMMENT 'beginning of the 60 seconds'
) AS
SELECT
    cluster, quota_key, user, sum(u.usage) AS usage, sum(u.bytes) AS bytes, uniqExact(client_id) AS clients,
    uniqExactIf(client_id, muted_ms > 0) AS throttled, max(u.utilization) AS utilization, source, window_start
FROM {{database}}.newest_rows AS u
GROUP BY cluster, quota_key, user, source, window_start;

-- The clients of the last 60 seconds.
CREATE VIEW IF NOT EXISTS {{database}}.telemetry_coverage
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `status`           LowCardinality(String)  COMMENT 'pushes; asked: it got an instance id and pushed nothing in 15 minutes; never asked: its software knows no client telemetry, or has it switched off',
    `instances`        UInt32                  COMMENT 'client instances heard of in 15 minutes',
    `pushes`           UInt64                  COMMENT 'their pushes',
    `last_seen`        Nullable(DateTime64(3, 'UTC'))  COMMENT 'when telemetry was heard of last',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `client_place`     UInt32                  COMMENT 'place of the client among those of the minute by cluster, user and client id: sorts as these do, in less time'
) AS
SELECT
    cluster, user, client_id, multiIf(pushes > 0, 'pushes', instances > 0, 'asked', 'never asked') AS status,
    instances, pushes, if(instances = 0, NULL, m.last_seen) AS last_seen, software_name, software_version, client_place
FROM {{database}}.newest_rows AS m
WHERE source = 'gateway'
-- All rows of a client in a minute say the same of its instances.
LIMIT 1 BY client_place;

-- Who shares a quota, of the clients of the last 60 seconds: the buckets as the gateway wrote them with
-- its rows, and no reading of the rules of its own.
CREATE VIEW IF NOT EXISTS {{database}}.quota_groups
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
SELECT
    cluster, quota_key, bucket_user AS group_user, bucket_client_id AS group_client_id, user, client_id, m.`limit` AS `limit`,
    matched_entity
FROM {{database}}.newest_rows AS m
WHERE is_worst AND source = 'gateway' AND limit_known
  AND isNotNull(m.`limit`);

-- How much of what the brokers meter passes the gateways: their JMX sensors beside ours, in the seconds in which a
-- sensor was read. What is missing are bytes of clients that reach the brokers by another way.
CREATE VIEW IF NOT EXISTS {{database}}.gateway_share
(
    `cluster`        LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`      LowCardinality(String)  COMMENT 'producer_byte_rate or consumer_byte_rate',
    `user`           LowCardinality(String)  COMMENT 'user tag of the broker''s metric; empty: all users share it',
    `client_id`      LowCardinality(String)  COMMENT 'client-id tag of the broker''s metric; empty: all client ids share it',
    `broker_id`      Int32                   COMMENT 'the broker',
    `broker_rate`    Float64                 COMMENT 'mean rate that the broker metered, in the seconds in which it was read',
    `gateway_rate`   Float64                 COMMENT 'mean rate that all gateways metered in the same seconds',
    `share`          Float64                 COMMENT 'gateway_rate / broker_rate: 0.62 is "we see 62 % of this client"',
    `bypassing_rate` Float64                 COMMENT 'rate that passed no gateway',
    `samples`        UInt64                  COMMENT 'seconds in which the broker was read',
    `last_sample`    DateTime('UTC')         COMMENT 'the newest of them'
) AS
WITH
    toStartOfMinute(now('UTC') - INTERVAL 2 MINUTE) AS since,
    now64(3, 'UTC') - INTERVAL 4 SECOND AS until
SELECT
    b.cluster AS cluster, b.quota_key AS quota_key, b.user AS user, b.client_id AS client_id, b.broker_id AS broker_id,
    avg(b.rate) AS broker_rate, avg(g.rate) AS gateway_rate, gateway_rate / broker_rate AS share,
    greatest(broker_rate - gateway_rate, 0.) AS bypassing_rate, count() AS samples,
    toDateTime(max(b.second), 'UTC') AS last_sample
FROM
(
    SELECT cluster, quota_key, bucket_user AS user, bucket_client_id AS client_id, broker_id, avg(r.rate) AS rate,
           intDiv(toUnixTimestamp64Milli(ts) + 500, 1000) AS second
    FROM {{database}}.quota_usage_recent AS r FINAL
    WHERE source = 'jmx' AND minute BETWEEN since AND now('UTC') AND ts <= until
      AND quota_key IN ('producer_byte_rate', 'consumer_byte_rate')
    GROUP BY cluster, quota_key, bucket_user, bucket_client_id, broker_id, second
    HAVING rate > 0
) AS b
LEFT JOIN
(
    SELECT cluster, quota_key, bucket_user, bucket_client_id, broker_id, second, sum(o.rate) AS rate
    FROM
    (
        -- A row holds for each second of its interval.
        SELECT cluster, quota_key, bucket_user, bucket_client_id, broker_id, max(r.rate) AS rate,
               arrayJoin(arrayMap(ago -> intDiv(toUnixTimestamp64Milli(ts) + 500, 1000) - ago,
                                  range(greatest(intDiv(least(interval_ms, 60000) + 500, 1000), 1)))) AS second
        FROM {{database}}.quota_usage_recent AS r FINAL
        WHERE source = 'gateway' AND minute BETWEEN since - INTERVAL 1 MINUTE AND now('UTC')
          AND quota_key IN ('producer_byte_rate', 'consumer_byte_rate')
          AND (SELECT count() FROM {{database}}.quota_usage_recent
               WHERE source = 'jmx' AND minute BETWEEN since AND now('UTC')) > 0
        GROUP BY cluster, quota_key, user, client_id, ip, broker_id, gateway_id, bucket_user, bucket_client_id, second
    ) AS o
    GROUP BY cluster, quota_key, bucket_user, bucket_client_id, broker_id, second
) AS g
    ON b.cluster = g.cluster AND b.quota_key = g.quota_key AND b.user = g.bucket_user
   AND b.client_id = g.bucket_client_id AND b.broker_id = g.broker_id AND b.second = g.second
GROUP BY cluster, quota_key, user, client_id, broker_id
SETTINGS {{settings_of_views}};
