-- Who is near a limit now, and the other questions of a running cluster, as views. Definitions: DECISIONS 19.

-- The rows of quota_usage of the last hours once more, ordered by minute: a window of one minute is read without the
-- rest of its hour. Rows that others insert into quota_usage arrive here too.
CREATE TABLE IF NOT EXISTS headroom.quota_usage_recent
(
    `minute`             DateTime('UTC')           COMMENT 'the minute of ts',
    `cluster`            LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `source`             Enum8('jmx' = 1, 'gateway' = 2, 'client' = 3)  COMMENT 'who measured',
    `quota_key`          LowCardinality(String)    COMMENT 'the kind of quota, as in Kafka''s configuration',
    `ts`                 DateTime64(3, 'UTC')      COMMENT 'end of the interval' CODEC(Delta(8), ZSTD(1)),
    `user`               LowCardinality(String)    COMMENT 'user of the connection',
    `client_id`          LowCardinality(String)    COMMENT 'client id of the requests',
    `ip`                 LowCardinality(String)    COMMENT 'address, where usage is counted by address',
    `broker_id`          Int32                     COMMENT 'the broker that served the requests',
    `gateway_id`         LowCardinality(String)    COMMENT 'the gateway that measured it',
    `bytes`              UInt64                    COMMENT 'bytes of the interval',
    `rate`               Float64                   COMMENT 'Kafka''s window rate at ts',
    `throttle_ms`        Float64                   COMMENT 'longest throttle time announced in the interval',
    `interval_ms`        UInt32                    COMMENT 'length of the interval; 0: a bare sample',
    `limit`              Nullable(Float64)         COMMENT 'quota in force at ts',
    `limit_known`        UInt8                     COMMENT '1: limit is what the cluster had configured at ts',
    `matched_entity`     LowCardinality(String)    COMMENT 'the quota entity that won',
    `bucket_user`        LowCardinality(String)    COMMENT 'metric tag user of the bucket',
    `bucket_client_id`   LowCardinality(String)    COMMENT 'metric tag client-id of the bucket',
    `received_at`        DateTime64(3, 'UTC')      COMMENT 'when Headroom stored the row'
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toStartOfHour(minute)
PRIMARY KEY (minute, cluster, source, quota_key)
ORDER BY (minute, cluster, source, quota_key, user, client_id, broker_id, ip, gateway_id, ts)
TTL minute + INTERVAL 6 HOUR DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS headroom.quota_usage_recent_feed TO headroom.quota_usage_recent AS
SELECT toStartOfMinute(ts) AS minute, cluster, source, quota_key, ts, user, client_id, ip, broker_id, gateway_id, bytes,
       rate, throttle_ms, interval_ms, `limit`, limit_known, matched_entity, bucket_user, bucket_client_id, received_at
FROM headroom.quota_usage
WHERE ts > now() - INTERVAL 6 HOUR AND ts < now() + INTERVAL 1 HOUR
  AND isFinite(rate) AND rate BETWEEN 0 AND 1e15 AND ifNull(isFinite(`limit`) AND `limit` BETWEEN 0 AND 1e15, 1);

-- From which share of its limit on a client is at a level, and how much of a window a client may be muted before it is
-- `throttled`. Replace this view to move the thresholds; the Spark job has them as settings.
CREATE VIEW IF NOT EXISTS headroom.level_thresholds AS
SELECT 0.60 AS watch, 0.80 AS warn, 0.95 AS critical, 0.01 AS muted_share;

-- Each client at each broker in the 60 s from `window_start` on, rows of the ten minutes before included for what they
-- mute. Only what is before `until` counts, so that a window may be read before it ends. Rates of all that share a
-- bucket are added second by second before mean and p95 are taken.
CREATE VIEW IF NOT EXISTS headroom.usage_of_minute AS
WITH
    toInt64(toUnixTimestamp({window_start:DateTime('UTC')})) * 1000 AS from_ms,
    least(toInt64(toUnixTimestamp({until:DateTime('UTC')})) * 1000, from_ms + 60000) AS to_ms,
    toUInt64(intDiv(to_ms - from_ms, 1000)) AS elapsed_s,
    meters AS
    (
        SELECT
            cluster, source, quota_key, user, client_id, broker_id,
            if(interval_ms = 0, 0, greatest(1, least(intDiv(interval_ms + 500, 1000), 60))) AS cadence_s,
            sum(rate * least(interval_ms, 60000)) AS area,
            avgResample(0, 60, 1)(rate, intDiv(intDiv(toUnixTimestamp64Milli(ts) - from_ms, 1000),
                                               greatest(cadence_s, 1)) * greatest(cadence_s, 1)) AS rates,
            sum(bytes) AS byte_count,
            max(throttle_ms) AS throttle_ms_max,
            intervalLengthSumStateIf(
                toFloat64(toUnixTimestamp64Milli(ts)),
                least(toUnixTimestamp64Milli(ts) + least(ceil(throttle_ms), 1e9), toFloat64(to_ms)),
                throttle_ms > 0) AS muted,
            argMax((limit_known, ifNull(`limit`, -1), matched_entity, bucket_user, bucket_client_id), ts) AS quota,
            max(ts) AS last_ts
        FROM headroom.quota_usage_recent FINAL
        WHERE minute BETWEEN toStartOfMinute({window_start:DateTime('UTC')}) AND {until:DateTime('UTC')}
          AND ts >= {window_start:DateTime('UTC')} AND toUnixTimestamp64Milli(ts) < to_ms
        GROUP BY cluster, source, quota_key, user, client_id, broker_id, gateway_id, ip, cadence_s
        UNION ALL
        SELECT
            cluster, source, quota_key, user, client_id, broker_id, 0, 0., CAST([], 'Array(Float64)'), 0,
            max(throttle_ms),
            intervalLengthSumState(
                greatest(toFloat64(toUnixTimestamp64Milli(ts)), toFloat64(from_ms)),
                least(toUnixTimestamp64Milli(ts) + least(ceil(throttle_ms), 1e9), toFloat64(to_ms))),
            argMax((limit_known, ifNull(`limit`, -1), matched_entity, bucket_user, bucket_client_id), ts),
            max(ts)
        FROM headroom.quota_usage_recent
        WHERE minute BETWEEN toStartOfMinute({window_start:DateTime('UTC')} - INTERVAL 10 MINUTE)
                         AND {window_start:DateTime('UTC')}
          AND ts < {window_start:DateTime('UTC')} AND throttle_ms > 0 AND isFinite(throttle_ms)
          AND toUnixTimestamp64Milli(ts) + throttle_ms > from_ms
        GROUP BY cluster, source, quota_key, user, client_id, broker_id
    ),
    clients AS
    (
        SELECT
            cluster, source, quota_key, user, client_id, broker_id,
            sumForEach(if(cadence_s <= 1, arrayMap(rate -> ifNotFinite(rate, 0), rates),
                          arrayMap(slot -> ifNotFinite(rates[slot - slot % toInt64(cadence_s) + 1], 0), range(toInt64(60))))
                      ) AS client_rates,
            maxForEach(arrayMap(rate -> toUInt8(isFinite(rate)), rates)) AS sampled,
            sum(if(cadence_s > 0, area, 1000 * arraySum(arrayMap(rate -> ifNotFinite(rate, 0), rates)))) AS client_area,
            max(cadence_s > 0) AS covered,
            sum(byte_count) AS client_bytes,
            max(throttle_ms_max) AS longest_ms,
            intervalLengthSumMerge(muted) AS muted_ms,
            argMax(quota, last_ts) AS newest,
            newest.1 AS limit_known, newest.2 AS row_limit, newest.3 AS entity,
            if(row_limit < 0, user, newest.4) AS shared_user, if(row_limit < 0, client_id, newest.5) AS shared_client_id,
            newest.4 AS tag_user, newest.5 AS tag_client_id,
            client_area / 1000 / if(covered, elapsed_s, greatest(arraySum(sampled), 1)) AS own_mean,
            arraySort(if(covered, arraySlice(client_rates, 1, elapsed_s),
                         arrayFilter((rate, seen) -> seen > 0, client_rates, sampled))) AS own_sorted,
            own_sorted[least(length(own_sorted), intDiv(95 * length(own_sorted), 100) + 1)] AS own_p95
        FROM meters
        GROUP BY cluster, source, quota_key, user, client_id, broker_id
    ),
    buckets AS
    (
        SELECT
            cluster, source, quota_key, broker_id, shared_user, shared_client_id, row_limit, limit_known,
            any(entity) AS matched_entity, any(tag_user) AS bucket_user, any(tag_client_id) AS bucket_client_id,
            sumForEach(client_rates) AS rates,
            maxForEach(sampled) AS seen_at,
            sum(client_area) / 1000 / if(max(covered), elapsed_s, greatest(arraySum(seen_at), 1)) AS group_usage,
            arraySort(if(max(covered), arraySlice(rates, 1, elapsed_s),
                         arrayFilter((rate, seen) -> seen > 0, rates, seen_at))) AS sorted,
            sorted[least(length(sorted), intDiv(95 * length(sorted), 100) + 1)] AS group_p95,
            groupArray((user, client_id, own_mean, own_p95, client_bytes, longest_ms, muted_ms)) AS members
        FROM clients
        GROUP BY cluster, source, quota_key, broker_id, shared_user, shared_client_id, row_limit, limit_known
    )
SELECT
    cluster, toString(source) AS source, quota_key, member.1 AS user, member.2 AS client_id, broker_id,
    if(row_limit < 0, NULL, row_limit) AS `limit`, limit_known, matched_entity, bucket_user, bucket_client_id,
    member.3 AS usage, member.4 AS usage_p95, member.5 AS bytes, group_usage, group_p95,
    multiIf(row_limit > 0, group_usage / row_limit, row_limit = 0 AND group_usage > 0, inf, NULL) AS utilization,
    multiIf(row_limit > 0, group_p95 / row_limit, row_limit = 0 AND group_p95 > 0, inf, NULL) AS utilization_p95,
    member.6 AS throttle_ms, toInt64(member.7) AS muted_ms, toUInt32(length(members) - 1) AS shared_with,
    {window_start:DateTime('UTC')} AS window_start, toUInt32(elapsed_s) AS window_s
FROM buckets
ARRAY JOIN members AS member;

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
    i.name AS software_name, i.version AS software_version, i.pushed AS pushes,
    greatest(dateDiff('millisecond', i.first, i.last) / 1000 / greatest(i.pushed - 1, 1), 10) AS usual_s,
    i.last AS last_seen, dateDiff('millisecond', i.last, now64(3, 'UTC')) / 1000 AS silent_s
FROM
(
    SELECT cluster, principal, client_id, client_instance_id, anyLast(software_name) AS name,
           anyLast(software_version) AS version, min(first_seen) AS first, max(last_seen) AS last, sum(pushes) AS pushed,
           max(terminated) AS ended
    FROM headroom.client_instances
    GROUP BY cluster, principal, client_id, client_instance_id
    HAVING ended = 0 AND pushed >= 2 AND last > now() - INTERVAL 1 DAY
) AS i
LEFT ANTI JOIN (SELECT cluster, user, client_id FROM headroom.throttled_now) AS t
    ON i.cluster = t.cluster AND i.principal = t.user AND i.client_id = t.client_id
WHERE silent_s > 3 * usual_s;

CREATE VIEW IF NOT EXISTS headroom.bad_client_versions AS
SELECT cluster, software_name, software_version, library, library_version, instances, last_seen, known_issue
FROM headroom.client_software
WHERE known_issue != '' AND instances > 0;

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
SELECT
    cluster, quota_key, user, sum(u.usage) AS usage, sum(u.bytes) AS bytes, uniqExact(client_id) AS clients,
    uniqExactIf(client_id, muted_ms > 0) AS throttled, max(u.utilization) AS utilization, source, window_start
FROM headroom.usage_of_minute(
    window_start = toStartOfMinute(now('UTC') - INTERVAL 64 SECOND),
    until = toStartOfMinute(now('UTC') - INTERVAL 4 SECOND)) AS u
GROUP BY cluster, quota_key, user, source, window_start;

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
SELECT
    u.cluster AS cluster, u.user AS user, u.client_id AS client_id,
    multiIf(i.pushes > 0, 'pushes', i.instances > 0, 'asked', 'never asked') AS status, i.instances AS instances,
    i.pushes AS pushes, if(i.instances = 0, NULL, i.last_seen) AS last_seen, i.software_name AS software_name,
    i.software_version AS software_version
FROM
(
    SELECT DISTINCT cluster, user, client_id FROM headroom.quota_usage_recent
    WHERE source = 'gateway' AND minute >= toStartOfMinute(now('UTC') - INTERVAL 2 MINUTE)
) AS u
LEFT ANY JOIN headroom.client_instances_now AS i
    ON u.cluster = i.cluster AND u.user = i.user AND u.client_id = i.client_id;

-- Who shares a quota: the buckets as the gateway wrote them with its rows, and no reading of the rules of its own.
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
SELECT
    cluster, quota_key, argMax(bucket_user, ts) AS group_user, argMax(bucket_client_id, ts) AS group_client_id, user,
    client_id, argMax(tuple(r.`limit`), ts).1 AS `limit`, argMax(r.matched_entity, ts) AS matched_entity
FROM headroom.quota_usage_recent AS r
WHERE source = 'gateway' AND limit_known AND minute >= toStartOfMinute(now('UTC') - INTERVAL 5 MINUTE)
GROUP BY cluster, quota_key, user, client_id
HAVING isNotNull(argMax(tuple(r.`limit`), ts).1);

-- Series by metric: client_metrics joins the series of the metrics that a query names, and no others.
CREATE TABLE IF NOT EXISTS headroom.series_by_metric
(
    `series_id`          UInt64                                COMMENT 'xxh3 of cluster, metric, instance, sorted attributes, temporality',
    `cluster`            LowCardinality(String)                COMMENT 'name of the Kafka cluster',
    `metric`             LowCardinality(String)                COMMENT 'OTLP metric name, verbatim',
    `principal`          LowCardinality(String)                COMMENT 'user name of the connection',
    `client_id`          LowCardinality(String)                COMMENT 'client id of the push',
    `client_instance_id` UUID                                  COMMENT 'client instance, as KIP-714 names it',
    `kind`               Enum8('gauge' = 1, 'sum' = 2)         COMMENT 'OTLP metric kind',
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2)  COMMENT 'OTLP aggregation temporality',
    `monotonic`          Bool                                  COMMENT 'whether a sum only grows',
    `unit`               LowCardinality(String)                COMMENT 'OTLP unit',
    `attributes`         Map(LowCardinality(String), String)   COMMENT 'data point attributes (topic, partition, node_id)',
    `resource`           Map(LowCardinality(String), String)   COMMENT 'resource attributes',
    `scope_name`         LowCardinality(String)                COMMENT 'OTLP instrumentation scope',
    `scope_version`      LowCardinality(String)                COMMENT 'its version',
    `software_name`      LowCardinality(String)                COMMENT 'from ApiVersions of the connection',
    `software_version`   LowCardinality(String)                COMMENT 'from ApiVersions of the connection',
    `source_address`     LowCardinality(String)                COMMENT 'address of the client',
    `broker_id`          Int32 DEFAULT -1                      COMMENT 'the broker that the connection leads to',
    `last_seen`          DateTime64(3, 'UTC')                  COMMENT 'when the series was described last'
)
ENGINE = ReplacingMergeTree(last_seen)
ORDER BY (cluster, metric, series_id)
TTL toDateTime(last_seen) + INTERVAL 30 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- After a crash between the statements below, all of them run again: the table may be away then.
CREATE TABLE IF NOT EXISTS headroom.series AS headroom.series_by_metric;

INSERT INTO headroom.series_by_metric SELECT * FROM headroom.series;

DROP TABLE IF EXISTS headroom.series;

RENAME TABLE headroom.series_by_metric TO headroom.series;

DROP VIEW IF EXISTS headroom.client_metrics;

CREATE VIEW IF NOT EXISTS headroom.client_metrics AS
SELECT
    p.cluster AS cluster, p.metric AS metric, p.ts AS ts, p.principal AS principal, p.client_id AS client_id,
    p.client_instance_id AS client_instance_id, p.series_id AS series_id, p.value AS value, p.int_value AS int_value,
    s.kind AS kind, s.temporality AS temporality, s.monotonic AS monotonic, p.flags AS flags,
    p.interval_ms AS interval_ms, s.unit AS unit, s.software_name AS software_name,
    s.software_version AS software_version, s.source_address AS source_address, s.broker_id AS broker_id,
    s.attributes AS attributes, s.resource AS resource, s.scope_name AS scope_name, s.scope_version AS scope_version,
    p.received_at AS received_at
FROM headroom.points AS p
LEFT ANY JOIN (
    SELECT cluster, metric, series_id, kind, temporality, monotonic, unit, software_name, software_version,
           source_address, broker_id, attributes, resource, scope_name, scope_version
    FROM headroom.series FINAL
) AS s ON p.series_id = s.series_id AND p.metric = s.metric AND p.cluster = s.cluster;
