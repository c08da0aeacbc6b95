-- Who is near a limit or throttled now.

-- Each client at each broker in each minute of the last six hours, with its level and the reason in words. The worst
-- broker: muted for the share of `muted_share` first, then the greater of mean and p95 utilisation, then muted time, then
-- the lowest broker id.
CREATE VIEW IF NOT EXISTS headroom.minute_levels
(
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           LowCardinality(String)  COMMENT 'who measured the usage: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32                   COMMENT 'the broker that served the requests',
    `is_worst`         UInt8                   COMMENT '1: the worst broker of this client in this minute',
    `limit`            Nullable(Float64)       COMMENT 'the quota per broker; NULL when no quota applies or none is known',
    `usage`            Float64                 COMMENT 'mean rate of this client on that broker',
    `utilization`      Nullable(Float64)       COMMENT 'group_usage / limit, not capped; NULL without a limit',
    `throttle_ms`      Float64                 COMMENT 'longest throttle time that the broker announced',
    `level`            Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4)
                                               COMMENT 'throttled: muted for 1 % of the window or more; critical, warn, watch: by the greater of utilization and utilization_p95 (level_thresholds)',
    `reason`           String                  COMMENT 'the level in words',
    `limit_known`      UInt8                   COMMENT '0: no quota was observed yet, the level is unknown',
    `matched_entity`   LowCardinality(String)  COMMENT 'the quota entity that won',
    `bucket_user`      LowCardinality(String)  COMMENT 'metric tag user; clients equal in both tags share the quota at a broker',
    `bucket_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `usage_p95`        Float64                 COMMENT '95th percentile of the client''s rate per second',
    `bytes`            UInt64                  COMMENT 'bytes of this client on that broker in the window',
    `group_usage`      Float64                 COMMENT 'mean rate of all clients that share the quota, on that broker',
    `group_p95`        Float64                 COMMENT '95th percentile of their summed rate per second',
    `utilization_p95`  Nullable(Float64)       COMMENT 'group_p95 / limit',
    `muted_ms`         Int64                   COMMENT 'how long the broker muted the client: union of the announced throttle times',
    `shared_with`      UInt32                  COMMENT 'other active clients under the same quota on that broker',
    `window_s`         UInt32                  COMMENT 'seconds of the minute that have passed: 60 once it has ended'
) AS
WITH
    (SELECT (watch, warn, critical) FROM headroom.level_thresholds) AS thresholds,
    arrayMap(value -> multiIf(
        quota_key = 'request_percentage', printf('%.1f %%', value),
        quota_key = 'controller_mutation_rate', printf('%.1f mutations/s', value),
        value >= 1e6, printf('%.1f MB/s', value / 1e6),
        value >= 1e3, printf('%.1f kB/s', value / 1e3),
        printf('%.0f B/s', value)), [greatest(ifNull(`limit`, 0) - group_usage, 0), ifNull(`limit`, 0)]) AS amounts
SELECT
    window_start, cluster, source, quota_key, user, client_id, -broker.4 AS broker_id, place = 1 AS is_worst,
    broker.5 AS `limit`, broker.6 AS usage, broker.7 AS utilization, broker.8 AS throttle_ms,
    CAST(multiIf(
        broker.1, 'throttled',
        broker.2 >= thresholds.3 OR muted_ms > 0, 'critical',
        NOT limit_known, 'unknown',
        broker.2 >= thresholds.2, 'warn',
        broker.2 >= thresholds.1, 'watch',
        'ok'), 'Enum8(\'unknown\' = -1, \'ok\' = 0, \'watch\' = 1, \'warn\' = 2, \'critical\' = 3, \'throttled\' = 4)') AS level,
    concat(
        multiIf(
            muted_ms > 0, printf('muted %.1f s of %d s on broker %d, throttle times up to %.0f ms',
                                 muted_ms / 1000, window_s, broker_id, throttle_ms),
            NOT limit_known, 'no quota was observed yet',
            isNull(`limit`), 'no quota applies',
            concat(amounts[1], ' headroom on broker ', toString(broker_id))),
        if(isNull(`limit`), '',
           printf(': at %.1f %% (p95 %.1f %%) of %s %s of %s', ifNull(utilization, 0) * 100, ifNull(utilization_p95, 0) * 100,
                  quota_key, amounts[2], matched_entity)),
        multiIf(isNull(`limit`) OR shared_with = 0, '', shared_with = 1, '; another client shares this quota',
                printf('; %d other clients share this quota', shared_with))) AS reason,
    broker.9 AS limit_known, broker.10 AS matched_entity, broker.11 AS bucket_user, broker.12 AS bucket_client_id,
    broker.13 AS usage_p95, broker.14 AS bytes, broker.15 AS group_usage, broker.16 AS group_p95,
    broker.17 AS utilization_p95, broker.3 AS muted_ms, broker.18 AS shared_with, broker.19 AS window_s
FROM
(
    SELECT
        window_start, cluster, source, quota_key, user, client_id,
        arrayReverseSort(b -> (b.1, b.2, b.3, b.4), groupArray((
            is_throttled, most, muted_ms, -broker_id, `limit`, usage, utilization, throttle_ms, limit_known,
            toString(matched_entity), toString(bucket_user), toString(bucket_client_id), usage_p95, bytes,
            group_usage, group_p95, utilization_p95, shared_with, window_s))) AS brokers
    FROM
    (
        SELECT
            *, ifNull(greatest(utilization, utilization_p95), -1) AS most,
            muted_ms >= (SELECT muted_share FROM headroom.level_thresholds) * window_s * 1000 AND muted_ms > 0
                AS is_throttled
        FROM headroom.usage_by_minute
    )
    GROUP BY window_start, cluster, source, quota_key, user, client_id
)
ARRAY JOIN brokers AS broker, arrayEnumerate(brokers) AS place;

-- Each client on its worst broker in each minute of the last six hours, with its level and the reason in words.
CREATE VIEW IF NOT EXISTS headroom.headroom_by_minute
(
    `window_start`     DateTime('UTC')  COMMENT 'beginning of the minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           LowCardinality(String)  COMMENT 'who measured the usage: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32  COMMENT 'the worst broker of the window: muted for 1 % of it first, then the highest utilisation',
    `limit`            Nullable(Float64)  COMMENT 'the quota per broker; NULL when no quota applies or none is known',
    `usage`            Float64  COMMENT 'mean rate of this client on that broker',
    `utilization`      Nullable(Float64)  COMMENT 'group_usage / limit, not capped; NULL without a limit',
    `throttle_ms`      Float64  COMMENT 'longest throttle time that the broker announced',
    `level`            Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4)  COMMENT 'throttled: muted for 1 % of the window or more; critical, warn, watch: by the greater of utilization and utilization_p95 (level_thresholds)',
    `reason`           String  COMMENT 'the level in words',
    `limit_known`      UInt8  COMMENT '0: no quota was observed yet, the level is unknown',
    `matched_entity`   LowCardinality(String)  COMMENT 'the quota entity that won',
    `bucket_user`      LowCardinality(String)  COMMENT 'metric tag user; clients equal in both tags share the quota at a broker',
    `bucket_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `usage_p95`        Float64  COMMENT '95th percentile of the client''s rate per second',
    `bytes`            UInt64  COMMENT 'bytes of this client on that broker in the window',
    `group_usage`      Float64  COMMENT 'mean rate of all clients that share the quota, on that broker',
    `group_p95`        Float64  COMMENT '95th percentile of their summed rate per second',
    `utilization_p95`  Nullable(Float64)  COMMENT 'group_p95 / limit',
    `muted_ms`         Int64  COMMENT 'how long the broker muted the client: union of the announced throttle times',
    `shared_with`      UInt32  COMMENT 'other active clients under the same quota on that broker',
    `window_s`         UInt32  COMMENT 'length of the window in seconds'
) AS
SELECT
    window_start, cluster, source, quota_key, user, client_id, broker_id, `limit`, usage, utilization, throttle_ms, level,
    reason, limit_known, matched_entity, bucket_user, bucket_client_id, usage_p95, bytes, group_usage, group_p95,
    utilization_p95, muted_ms, shared_with, window_s
FROM headroom.minute_levels
WHERE is_worst;

-- Client instances heard of in the last 15 minutes that did not push a terminating push, by client.
CREATE VIEW IF NOT EXISTS headroom.client_instances_now
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `instances`        UInt32                  COMMENT 'client instances',
    `software_name`    LowCardinality(String)  COMMENT 'client software of the newest, as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when the newest was heard of last',
    `first_seen`       DateTime64(3, 'UTC')    COMMENT 'when the oldest was heard of first',
    `pushes`           UInt64                  COMMENT 'their pushes'
) AS
SELECT
    cluster, principal AS user, client_id, toUInt32(count()) AS instances,
    argMax(instance_software_name, seen) AS software_name, argMax(instance_software_version, seen) AS software_version,
    max(seen) AS last_seen, min(first) AS first_seen, sum(instance_pushes) AS pushes
FROM
(
    SELECT cluster, principal, client_id, client_instance_id, anyLast(software_name) AS instance_software_name,
           anyLast(software_version) AS instance_software_version, max(last_seen) AS seen, min(first_seen) AS first,
           sum(pushes) AS instance_pushes
    FROM headroom.client_instances
    WHERE last_seen > now() - INTERVAL 15 MINUTE
    GROUP BY cluster, principal, client_id, client_instance_id
    HAVING max(terminated) = 0
)
GROUP BY cluster, principal, client_id;

-- Each client on its worst broker in the newest minute that has ended, as `headroom serve` computed it (headroom_minutes).
CREATE VIEW IF NOT EXISTS headroom.headroom_now
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`        LowCardinality(String)  COMMENT 'producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32                   COMMENT 'the worst broker of the window: muted for 1 % of it first, then the highest utilisation',
    `limit`            Nullable(Float64)       COMMENT 'the quota per broker; NULL when no quota applies or none is known',
    `usage`            Float64                 COMMENT 'mean rate of this client on that broker',
    `utilization`      Nullable(Float64)       COMMENT 'group_usage / limit, not capped; NULL without a limit',
    `throttle_ms`      Float64                 COMMENT 'longest throttle time that the broker announced',
    `level`            Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4)
                                               COMMENT 'throttled: muted for 1 % of the window or more; critical, warn, watch: by the greater of utilization and utilization_p95 (level_thresholds)',
    `reason`           String                  COMMENT 'the level in words',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `instances`        UInt32                  COMMENT 'client instances heard of in 15 minutes; 0 for clients that push no telemetry',
    `source`           LowCardinality(String)  COMMENT 'who measured the usage: gateway or jmx',
    `limit_known`      UInt8                   COMMENT '0: no quota was observed yet, the level is unknown',
    `matched_entity`   LowCardinality(String)  COMMENT 'the quota entity that won',
    `bucket_user`      LowCardinality(String)  COMMENT 'metric tag user; clients equal in both tags share the quota at a broker',
    `bucket_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `usage_p95`        Float64                 COMMENT '95th percentile of the client''s rate per second',
    `bytes`            UInt64                  COMMENT 'bytes of this client on that broker in the window',
    `group_usage`      Float64                 COMMENT 'mean rate of all clients that share the quota, on that broker',
    `group_p95`        Float64                 COMMENT '95th percentile of their summed rate per second',
    `utilization_p95`  Nullable(Float64)       COMMENT 'group_p95 / limit',
    `muted_ms`         Int64                   COMMENT 'how long the broker muted the client: union of the announced throttle times',
    `shared_with`      UInt32                  COMMENT 'other active clients under the same quota on that broker',
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the window: the newest minute that has ended',
    `window_s`         UInt32                  COMMENT 'length of the window in seconds'
) AS
WITH (SELECT (window_start, computed_at) FROM headroom.newest_minute) AS newest
SELECT
    cluster, quota_key, user, client_id, broker_id, `limit`, usage, utilization, throttle_ms, level, reason, software_name,
    software_version, instances, source, limit_known, matched_entity, bucket_user, bucket_client_id, usage_p95, bytes,
    group_usage, group_p95, utilization_p95, muted_ms, shared_with, window_start, window_s
FROM headroom.headroom_minutes
WHERE window_start = newest.1 AND computed_at = newest.2 AND is_worst;

-- Clients at level warn or worse.
CREATE VIEW IF NOT EXISTS headroom.near_limit
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`        LowCardinality(String)  COMMENT 'producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32  COMMENT 'the worst broker of the window: muted for 1 % of it first, then the highest utilisation',
    `limit`            Nullable(Float64)  COMMENT 'the quota per broker; NULL when no quota applies or none is known',
    `usage`            Float64  COMMENT 'mean rate of this client on that broker',
    `utilization`      Nullable(Float64)  COMMENT 'group_usage / limit, not capped; NULL without a limit',
    `throttle_ms`      Float64  COMMENT 'longest throttle time that the broker announced',
    `level`            Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4)  COMMENT 'throttled: muted for 1 % of the window or more; critical, warn, watch: by the greater of utilization and utilization_p95 (level_thresholds)',
    `reason`           String  COMMENT 'the level in words',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `instances`        UInt32  COMMENT 'client instances heard of in 15 minutes; 0 for clients that push no telemetry',
    `source`           LowCardinality(String)  COMMENT 'who measured the usage: gateway or jmx',
    `limit_known`      UInt8  COMMENT '0: no quota was observed yet, the level is unknown',
    `matched_entity`   LowCardinality(String)  COMMENT 'the quota entity that won',
    `bucket_user`      LowCardinality(String)  COMMENT 'metric tag user; clients equal in both tags share the quota at a broker',
    `bucket_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `usage_p95`        Float64  COMMENT '95th percentile of the client''s rate per second',
    `bytes`            UInt64  COMMENT 'bytes of this client on that broker in the window',
    `group_usage`      Float64  COMMENT 'mean rate of all clients that share the quota, on that broker',
    `group_p95`        Float64  COMMENT '95th percentile of their summed rate per second',
    `utilization_p95`  Nullable(Float64)  COMMENT 'group_p95 / limit',
    `muted_ms`         Int64  COMMENT 'how long the broker muted the client: union of the announced throttle times',
    `shared_with`      UInt32  COMMENT 'other active clients under the same quota on that broker',
    `window_start`     DateTime('UTC')  COMMENT 'beginning of the window: the newest minute that has ended',
    `window_s`         UInt32  COMMENT 'length of the window in seconds'
) AS
SELECT cluster, quota_key, user, client_id, broker_id, `limit`, usage, utilization, throttle_ms, level,
       reason, software_name, software_version, instances, source, limit_known, matched_entity, bucket_user,
       bucket_client_id, usage_p95, bytes, group_usage, group_p95, utilization_p95, muted_ms, shared_with,
       window_start, window_s
FROM headroom.headroom_now WHERE level >= 'warn';

-- Who is muted at this moment or was in the last minute. Not of whole minutes: the newest row counts.
CREATE VIEW IF NOT EXISTS headroom.throttled_now
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
    FROM headroom.quota_usage_recent AS r
    WHERE minute BETWEEN toStartOfMinute(now('UTC') - INTERVAL 10 MINUTE) AND now('UTC') AND isFinite(r.throttle_ms)
      AND (r.throttle_ms > 0 OR r.muted_ms > 0)
    GROUP BY cluster, quota_key, user, client_id, broker_id, source, second
) AS by_second
GROUP BY cluster, quota_key, user, client_id, broker_id, by_second.source
HAVING max(until_ms) > now_ms - 60000;
