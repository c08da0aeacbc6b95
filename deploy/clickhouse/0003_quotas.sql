-- Quotas: what is configured, what is used, and the verdict of the Spark job.

-- Slowly changing: a row when a value changes, NULL from the moment that it was removed.
CREATE TABLE IF NOT EXISTS headroom.quota_limits
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
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS headroom.quota_usage
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
    `source`             Enum8('jmx' = 1, 'gateway' = 2, 'client' = 3),
    `received_at`        DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toDate(ts)
PRIMARY KEY (cluster, quota_key, toStartOfHour(ts), user, client_id)
ORDER BY (cluster, quota_key, toStartOfHour(ts), user, client_id, ip, broker_id, source, ts)
TTL toDateTime(ts) + INTERVAL 30 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- A rerun of the job replaces its windows: the newest run_version counts (read with FINAL).
CREATE TABLE IF NOT EXISTS headroom.quota_utilization
(
    `cluster`                LowCardinality(String),
    `quota_key`              LowCardinality(String),
    `window_start`           DateTime('UTC')           CODEC(Delta(4), ZSTD(1)),
    `window_s`               UInt32,
    `user`                   LowCardinality(String),
    `client_id`              LowCardinality(String),
    `broker_id`              Int32                     COMMENT 'the worst broker of the window',
    `matched_entity`         LowCardinality(String)    COMMENT 'the quota entity that won',
    `limit`                  Nullable(Float64)         COMMENT 'NULL when no quota applies',
    `usage`                  Float64                   COMMENT 'mean rate of this client on the worst broker',
    `group_usage`            Float64                   COMMENT 'mean rate of all clients that share the quota, on the worst broker',
    `usage_avg`              Float64,
    `usage_p95`              Float64,
    `usage_max`              Float64,
    `utilization`            Nullable(Float64)         COMMENT 'rate / limit on the worst broker, uncapped',
    `throttle_ms_max`        Float64,
    `throttled_s`            Float64,
    `client_throttle_ms_max` Nullable(Float64)         COMMENT 'as the client itself reported',
    `instances`              UInt32,
    `shared_with`            UInt32                    COMMENT 'other clients under the same quota',
    `eta_s`                  Nullable(Float64)         COMMENT 'seconds until the limit is reached, if the trend holds',
    `level`                  Enum8('ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4),
    `reason`                 String                    COMMENT 'the level in words',
    `software_name`          LowCardinality(String),
    `software_version`       LowCardinality(String),
    `run_id`                 UUID,
    `run_version`            UInt64
)
ENGINE = ReplacingMergeTree(run_version)
PARTITION BY toDate(window_start)
ORDER BY (cluster, quota_key, window_s, window_start, user, client_id)
TTL window_start + INTERVAL 90 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS headroom.job_runs
(
    `job`                LowCardinality(String),
    `run_id`             UUID,
    `run_version`        UInt64,
    `window_from`        DateTime('UTC'),
    `window_to`          DateTime('UTC'),
    `status`             Enum8('running' = 1, 'succeeded' = 2, 'failed' = 3),
    `rows_in`            UInt64,
    `rows_out`           UInt64,
    `started_at`         DateTime64(3, 'UTC'),
    `finished_at`        Nullable(DateTime64(3, 'UTC')),
    `error`              String,
    `stats`              Map(LowCardinality(String), Float64),
    `updated_at`         DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(updated_at)
ORDER BY (job, window_from, run_id)
SETTINGS non_replicated_deduplication_window = 10000;
