-- Who is near a limit or throttled now.

-- Each client on its worst broker, with its level and the reason in words. The worst broker: muted for the share of
-- `muted_share` first, then the greater of mean and p95 utilisation, then muted time, then the lowest broker id.
CREATE VIEW IF NOT EXISTS headroom.headroom_of_minute AS
WITH
    (SELECT (watch, warn, critical, muted_share) FROM headroom.level_thresholds) AS thresholds,
    (value, key) -> multiIf(
        key = 'request_percentage', printf('%.1f %%', value),
        key = 'controller_mutation_rate', printf('%.1f mutations/s', value),
        value >= 1e6, printf('%.1f MB/s', value / 1e6),
        value >= 1e3, printf('%.1f kB/s', value / 1e3),
        printf('%.0f B/s', value)) AS amount,
    worst AS
    (
        SELECT
            *, ifNull(greatest(utilization, utilization_p95), -1) AS most,
            muted_ms >= thresholds.4 * window_s * 1000 AND muted_ms > 0 AS is_throttled
        FROM headroom.usage_of_minute(window_start = {window_start:DateTime('UTC')}, until = {until:DateTime('UTC')})
        ORDER BY is_throttled DESC, most DESC, muted_ms DESC, broker_id
        LIMIT 1 BY cluster, source, quota_key, user, client_id
    )
SELECT
    cluster, quota_key, user, client_id, broker_id, `limit`, usage, utilization, throttle_ms,
    CAST(multiIf(
        is_throttled, 'throttled',
        NOT limit_known, 'unknown',
        most >= thresholds.3 OR muted_ms > 0, 'critical',
        most >= thresholds.2, 'warn',
        most >= thresholds.1, 'watch',
        'ok'), 'Enum8(\'unknown\' = -1, \'ok\' = 0, \'watch\' = 1, \'warn\' = 2, \'critical\' = 3, \'throttled\' = 4)') AS level,
    concat(
        multiIf(
            muted_ms > 0, printf('muted %.1f s of %d s on broker %d, throttle times up to %.0f ms',
                                 muted_ms / 1000, window_s, broker_id, throttle_ms),
            NOT limit_known, 'no quota was observed yet',
            isNull(`limit`), 'no quota applies',
            printf('%s headroom on broker %d', amount(greatest(assumeNotNull(`limit`) - group_usage, 0), quota_key), broker_id)),
        if(isNull(`limit`), '',
           printf(': at %.1f %% (p95 %.1f %%) of %s %s of %s', ifNull(utilization, 0) * 100, ifNull(utilization_p95, 0) * 100,
                  quota_key, amount(assumeNotNull(`limit`), quota_key), matched_entity)),
        multiIf(isNull(`limit`) OR shared_with = 0, '', shared_with = 1, '; another client shares this quota',
                printf('; %d other clients share this quota', shared_with))) AS reason,
    source, limit_known, matched_entity, bucket_user, bucket_client_id, usage_p95, bytes, group_usage, group_p95,
    utilization_p95, muted_ms, shared_with, window_start, window_s
FROM worst;

-- Client instances heard of in the last 15 minutes that did not push a terminating push, by client.
CREATE VIEW IF NOT EXISTS headroom.client_instances_now AS
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
SELECT
    h.* EXCEPT (window_start, window_s), h.window_start AS window_start, h.window_s AS window_s,
    s.software_name AS software_name, s.software_version AS software_version, s.instances AS instances
FROM headroom.headroom_of_minute(
    window_start = toStartOfMinute(now('UTC') - INTERVAL 64 SECOND),
    until = toStartOfMinute(now('UTC') - INTERVAL 4 SECOND)) AS h
LEFT ANY JOIN headroom.client_instances_now AS s
    ON h.cluster = s.cluster AND h.user = s.user AND h.client_id = s.client_id;

CREATE VIEW IF NOT EXISTS headroom.near_limit AS
SELECT * FROM headroom.headroom_now WHERE level >= 'warn';

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
    cluster, quota_key, user, client_id, broker_id,
    toUInt8(max(until_ms) > now_ms) AS is_muted, max(r.throttle_ms) AS throttle_ms,
    toInt64(intervalLengthSumIf(greatest(at_ms, toFloat64(now_ms - 60000)), least(until_ms, toFloat64(now_ms)),
                                until_ms > now_ms - 60000)) AS muted_ms,
    fromUnixTimestamp64Milli(toInt64(max(until_ms)), 'UTC') AS muted_until, min(ts) AS throttled_since,
    argMax(tuple(r.`limit`), ts).1 AS `limit`, argMax(r.matched_entity, ts) AS matched_entity, toString(r.source) AS source
FROM
(
    SELECT *, toFloat64(toUnixTimestamp64Milli(ts)) AS at_ms, at_ms + least(ceil(throttle_ms), 1e9) AS until_ms
    FROM headroom.quota_usage_recent
    WHERE minute >= toStartOfMinute(now('UTC') - INTERVAL 10 MINUTE) AND throttle_ms > 0 AND isFinite(throttle_ms)
) AS r
GROUP BY cluster, quota_key, user, client_id, broker_id, r.source
HAVING max(until_ms) > now_ms - 60000;
