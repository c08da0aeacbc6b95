-- Quotas: what is configured and what is used.

-- Slowly changing: a row when a value changes, NULL from the moment that it was removed.
CREATE TABLE IF NOT EXISTS {{database}}.quota_limits
(
    `cluster`            LowCardinality(String),
    `user`               LowCardinality(String)    COMMENT '\'\' = not part of the entity, \'<default>\' = default entity',
    `client_id`          LowCardinality(String),
    `ip`                 LowCardinality(String),
    `quota_key`          LowCardinality(String),
    `valid_from`         DateTime64(3, 'UTC'),
    `value`              Nullable(Float64),
    `observed_at`        DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(observed_at)
ORDER BY (cluster, quota_key, user, client_id, ip, valid_from)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- What the brokers' own configuration says that rates and limits depend on: a row when a broker's facts change, and when
-- Headroom starts. 0 and '' stand for what is not set or could not be read.
CREATE TABLE IF NOT EXISTS {{database}}.cluster_facts
(
    `cluster`                         LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `broker_id`                       Int32                   COMMENT 'the broker',
    `valid_from`                      DateTime64(3, 'UTC')    COMMENT 'when the facts were read first',
    `release`                         LowCardinality(String)  COMMENT 'Kafka release, as 4.3; empty: not known',
    `quota_window_num`                UInt32                  COMMENT 'quota.window.num, or the setting quotas.window_num; 0: not read',
    `quota_window_size_ms`            UInt32                  COMMENT 'quota.window.size.seconds in ms, or the setting quotas.window_size_ms; 0: not read',
    `controller_quota_window_num`     UInt32                  COMMENT 'controller.quota.window.num; 0: not read',
    `controller_quota_window_size_ms` UInt32                  COMMENT 'controller.quota.window.size.seconds in ms; 0: not read',
    `callback_class`                  LowCardinality(String)  COMMENT 'client.quota.callback.class; empty: none, Kafka\'s own rules apply',
    `telemetry_max_bytes`             UInt64                  COMMENT 'telemetry.max.bytes; 0: not read, or a broker before 3.7',
    `io_threads`                      UInt32                  COMMENT 'num.io.threads; 0: not read',
    `network_threads`                 UInt32                  COMMENT 'num.network.threads; 0: not read',
    `configs`                         Map(LowCardinality(String), String)
                                      COMMENT 'all configurations that were read, limits of connections and replication among them',
    `observed_at`                     DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the row was stored'
)
ENGINE = ReplacingMergeTree(observed_at)
ORDER BY (cluster, broker_id, valid_from)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The newest facts of each broker. Brokers that left the cluster keep their last row.
CREATE VIEW IF NOT EXISTS {{database}}.cluster_facts_now
(
    `cluster`             LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `broker_id`           Int32                   COMMENT 'the broker',
    `valid_from`          DateTime64(3, 'UTC')    COMMENT 'when the facts were read first',
    `release`             LowCardinality(String)  COMMENT 'Kafka release, as 4.3; empty: not known',
    `quota_window_num`    UInt32                  COMMENT 'quota.window.num, or the setting quotas.window_num; 0: not read',
    `quota_window_size_ms` UInt32                 COMMENT 'quota.window.size.seconds in ms, or the setting quotas.window_size_ms; 0: not read',
    `quota_window_ms`     UInt64                  COMMENT 'quota.window.num x quota.window.size.seconds in ms; 0: not read',
    `callback_class`      LowCardinality(String)  COMMENT 'client.quota.callback.class; empty: none, Kafka\'s own rules apply',
    `telemetry_max_bytes` UInt64                  COMMENT 'telemetry.max.bytes; 0: not read, or a broker before 3.7',
    `configs`             Map(LowCardinality(String), String)
                                                  COMMENT 'all configurations that were read'
) AS
SELECT
    cluster, broker_id, valid_from, release, quota_window_num, quota_window_size_ms,
    toUInt64(quota_window_num) * quota_window_size_ms AS quota_window_ms, callback_class, telemetry_max_bytes, configs
FROM {{database}}.cluster_facts FINAL
ORDER BY cluster, broker_id, valid_from DESC
LIMIT 1 BY cluster, broker_id;

-- Usage of several gateways, over intervals, with the limit that was in force: what DECISIONS 19 defines as usage.
-- muted_ms: the longest throttle time of an interval understates the time in which a client was muted several times a
-- second. received_at_range finds rows that arrive late: inserts come in about its order, so a minmax index prunes
-- well.
CREATE TABLE IF NOT EXISTS {{database}}.quota_usage
(
    `cluster`            LowCardinality(String),
    `quota_key`          LowCardinality(String),
    `ts`                 DateTime64(3, 'UTC')      COMMENT 'end of the interval' CODEC(Delta(8), ZSTD(1)),
    `user`               LowCardinality(String),
    `client_id`          LowCardinality(String),
    `ip`                 LowCardinality(String),
    `broker_id`          Int32,
    `bytes`              UInt64                    COMMENT 'bytes of the interval' CODEC(Delta(8), ZSTD(1)),
    `rate`               Float64                   COMMENT 'Kafka\'s window rate at ts' CODEC(Delta(8), ZSTD(1)),
    `throttle_ms`        Float64                   COMMENT 'longest throttle time that the broker announced in the interval' CODEC(ZSTD(1)),
    `throttled_requests` UInt64                    CODEC(ZSTD(1)),
    `source`             Enum8('jmx' = 1, 'gateway' = 2),
    `received_at`        DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta(8), ZSTD(1)),
    `gateway_id`         LowCardinality(String)    COMMENT 'the gateway that measured it (--gateway-id); empty for other sources',
    `interval_ms`        UInt32 DEFAULT 0          COMMENT 'length of the interval that ends at ts; 0: a sample at ts, its interval is unknown',
    `muted_ms`           UInt32 DEFAULT 0          COMMENT 'time in [ts - interval_ms, ts) in which the broker muted the client: the union of all throttle times; 0 when interval_ms is 0',
    `limit`              Nullable(Float64)         COMMENT 'quota in force at ts; NULL: no quota applies, or it is not known (limit_known)',
    `limit_known`        UInt8 DEFAULT isNotNull(`limit`)  COMMENT '1: limit is what the cluster had configured at ts',
    `matched_entity`     LowCardinality(String) DEFAULT '' COMMENT 'the quota entity that won, empty when none did',
    `bucket_user`        LowCardinality(String) DEFAULT user
                         COMMENT 'metric tag user under which the broker meters; rows equal in both tags share one quota at a broker',
    `bucket_client_id`   LowCardinality(String) DEFAULT client_id
                         COMMENT 'metric tag client-id under which the broker meters',
    `decided_by`         LowCardinality(String) DEFAULT ''
                         COMMENT 'client.quota.callback.class of the broker, which decides instead of limit; empty: none',
    `implied_limit`      Float64 DEFAULT 0         COMMENT 'limit that the longest throttle time of the interval implies; 0: no estimate',
    `requests`           UInt64 DEFAULT 0          COMMENT 'Produce or Fetch requests of the interval; 0 for other keys and sources' CODEC(Delta(8), ZSTD(1)),
    INDEX received_at_range received_at TYPE minmax GRANULARITY 4
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toDate(ts)
PRIMARY KEY (cluster, quota_key, toStartOfHour(ts), user, client_id)
ORDER BY (cluster, quota_key, toStartOfHour(ts), user, client_id, ip, broker_id, source, ts, gateway_id)
TTL toDateTime(ts) + INTERVAL 30 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1,
         fsync_part_directory = 1;

-- What was read of a share of the Produce requests and Fetch responses (setting quotas.topics.sample), per client and
-- topic. The key begins with the time's hour, because readers ask for minutes of all clients as often as for one client.
CREATE TABLE IF NOT EXISTS {{database}}.topic_samples
(
    `cluster`            LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `ts`                 DateTime64(3, 'UTC')      COMMENT 'end of the interval' CODEC(Delta(8), ZSTD(1)),
    `interval_ms`        UInt32                    COMMENT 'length of the interval that ends at ts',
    `user`               LowCardinality(String)    COMMENT 'principal of the client; (others): of clients whose room was taken',
    `client_id`          LowCardinality(String)    COMMENT 'its client id; (others): of clients whose room was taken',
    `topic`              LowCardinality(String)    COMMENT 'name of the topic, or its id where the name is not known; (others): topics whose room was taken',
    `direction`          Enum8('in' = 1, 'out' = 2)  COMMENT 'in: produced to the cluster, out: fetched from it',
    `sampled_bytes`      UInt64                    COMMENT 'bytes of records in the frames that were read, as on the wire' CODEC(ZSTD(1)),
    `sampled_frames`     UInt64                    COMMENT 'frames that were read in which the topic had records' CODEC(ZSTD(1)),
    `sample`             Float64                   COMMENT 'share of the frames that were read',
    `gateway_id`         LowCardinality(String)    COMMENT 'the gateway that read them (--gateway-id)',
    `received_at`        DateTime64(3, 'UTC') DEFAULT now64(3)  COMMENT 'when the row was stored' CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toDate(ts)
ORDER BY (cluster, toStartOfHour(ts), user, client_id, direction, topic, ts, gateway_id)
TTL toDateTime(ts) + INTERVAL 30 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1,
         fsync_part_directory = 1;

-- Each frame was read with the probability `sample`, so the sampled bytes divided by it are an unbiased estimate.
CREATE VIEW IF NOT EXISTS {{database}}.topic_usage
(
    `cluster`        LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `window_start`   DateTime64(3, 'UTC')      COMMENT 'beginning of the minute',
    `window_s`       UInt32                    COMMENT 'its length: 60',
    `user`           LowCardinality(String)    COMMENT 'principal of the client; (others): of clients whose room was taken',
    `client_id`      LowCardinality(String)    COMMENT 'its client id; (others): of clients whose room was taken',
    `topic`          LowCardinality(String)    COMMENT 'name of the topic, or its id where the name is not known; (others): topics whose room was taken',
    `direction`      Enum8('in' = 1, 'out' = 2)  COMMENT 'in: produced to the cluster, out: fetched from it',
    `bytes`          Float64                   COMMENT 'estimate of all bytes of records, as on the wire: sampled bytes / sample',
    `bytes_error`    Float64                   COMMENT 'standard error of bytes if a client\'s frames with a topic are alike; 0 when all were read',
    `sampled_frames` UInt64                    COMMENT 'frames that the estimate is made from'
) AS
SELECT
    cluster, toDateTime64(toStartOfMinute(ts - INTERVAL 1 MILLISECOND), 3, 'UTC') AS window_start, toUInt32(60) AS window_s,
    user, client_id, topic, direction, sum(sampled_bytes / sample) AS bytes,
    sqrt(sum((1 - sample) * pow(sampled_bytes / sample, 2) / topic_samples.sampled_frames)) AS bytes_error,
    sum(topic_samples.sampled_frames) AS sampled_frames
FROM {{database}}.topic_samples FINAL
GROUP BY cluster, window_start, user, client_id, topic, direction;

-- Two gateways in front of a cluster record a change each: a row that repeats the value before it is no change.
CREATE VIEW IF NOT EXISTS {{database}}.quota_changes
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
    FROM {{database}}.quota_limits FINAL
)
WHERE isNull(value) != isNull(previous) OR ifNull(value != previous, 0);
