-- Usage, utilisation and muted time of one minute, per client and broker. Definitions: DECISIONS 19.

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

-- producer_byte_rate = Long.MAX_VALUE is a usual way to write "unlimited": rows with a limit above 1e15 stay, as rows
-- without a limit. Bad limits are NaN and negative ones.
CREATE MATERIALIZED VIEW IF NOT EXISTS headroom.quota_usage_recent_feed TO headroom.quota_usage_recent AS
SELECT toStartOfMinute(q.ts) AS minute, q.cluster AS cluster, q.source AS source, q.quota_key AS quota_key, q.ts AS ts,
       q.user AS user, q.client_id AS client_id, q.ip AS ip, q.broker_id AS broker_id, q.gateway_id AS gateway_id,
       q.bytes AS bytes, q.rate AS rate, q.throttle_ms AS throttle_ms, q.interval_ms AS interval_ms,
       if(q.`limit` > 1e15, NULL, q.`limit`) AS `limit`, q.limit_known AS limit_known,
       q.matched_entity AS matched_entity, q.bucket_user AS bucket_user, q.bucket_client_id AS bucket_client_id,
       q.received_at AS received_at
FROM headroom.quota_usage AS q
WHERE q.ts > now() - INTERVAL 6 HOUR AND q.ts < now() + INTERVAL 1 HOUR
  AND isFinite(q.rate) AND q.rate BETWEEN 0 AND 1e15 AND ifNull(q.`limit` >= 0, 1);

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
