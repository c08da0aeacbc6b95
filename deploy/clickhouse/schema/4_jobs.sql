-- What the Spark jobs write. Results of a run are written to a staging table and published by one INSERT SELECT, so
-- that a run that is killed leaves nothing that anyone reads.

-- A rerun of the job replaces its windows: the newest run_version counts (read with FINAL).
CREATE TABLE IF NOT EXISTS {{database}}.quota_utilization
(
{{columns_of_utilization}},
    `run_id`                 UUID                      COMMENT 'id of the run that wrote the row',
    `run_version`            UInt64                    COMMENT 'orders runs: the newest row counts',
    `is_deleted`             UInt8 DEFAULT 0           COMMENT '1: an earlier run wrote this row and its input has gone'
)
ENGINE = ReplacingMergeTree(run_version, is_deleted)
PARTITION BY toDate(window_start)
ORDER BY (cluster, source, quota_key, window_s, window_start, user, client_id)
TTL window_start + INTERVAL 90 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- Rows of runs that are not published yet.
CREATE TABLE IF NOT EXISTS {{database}}.quota_utilization_staging
(
    `run`                    String                    COMMENT 'id of the run',
{{columns_of_utilization}},
    `staged_at`              DateTime('UTC') DEFAULT now()
)
ENGINE = MergeTree
PARTITION BY run
ORDER BY (run, cluster, quota_key, window_start)
TTL staged_at + INTERVAL 1 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;

-- A window of a cluster and source that a run published: written last.
CREATE TABLE IF NOT EXISTS {{database}}.quota_utilization_windows
(
    `cluster`       LowCardinality(String),
    `source`        LowCardinality(String),
    `window_s`      UInt32,
    `window_start`  DateTime('UTC'),
    `complete`      UInt8,
    `rows`          UInt64,
    `run_id`        UUID,
    `run_version`   UInt64,
    `committed_at`  DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(run_version)
PARTITION BY toDate(window_start)
ORDER BY (cluster, source, window_s, window_start)
TTL window_start + INTERVAL 90 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- The rows of committed windows only, each window as one run wrote it.
CREATE VIEW IF NOT EXISTS {{database}}.quota_utilization_committed
(
{{columns_of_utilization}},
    `run_id`                 UUID                      COMMENT 'id of the run that wrote the row',
    `run_version`            UInt64                    COMMENT 'orders runs: the newest row counts'
) AS
SELECT u.* EXCEPT is_deleted
FROM {{database}}.quota_utilization AS u FINAL
INNER JOIN (
    SELECT cluster, source, window_s, window_start, run_version FROM {{database}}.quota_utilization_windows FINAL
) AS w USING (cluster, source, window_s, window_start, run_version)
SETTINGS {{settings_of_views}};

CREATE TABLE IF NOT EXISTS {{database}}.job_runs
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
    `updated_at`         DateTime64(3, 'UTC') DEFAULT now64(3),
    `source`             LowCardinality(String) DEFAULT '',
    `owner`              String DEFAULT ''         COMMENT 'host and process id of the driver',
    `rows_bad`           UInt64 DEFAULT 0          COMMENT 'rows of the input whose numbers are no measurement',
    `rows_late`          UInt64 DEFAULT 0          COMMENT 'rows that arrived after their window was published',
    `watermark`          DateTime64(3, 'UTC') DEFAULT toDateTime64(0, 3, 'UTC')
                         COMMENT 'everything received before it is in the results',
    `cluster`            LowCardinality(String) DEFAULT '' COMMENT 'the cluster that the run read; '''': all',
    `window_s`           UInt32 DEFAULT 0          COMMENT 'length of the windows in seconds',
    `step`               String DEFAULT ''         COMMENT 'what the run does, or did last; Spark shows it, too'
)
ENGINE = ReplacingMergeTree(updated_at)
ORDER BY (job, window_from, run_id)
SETTINGS non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS {{database}}.throttle_forecast
(
    `cluster`        LowCardinality(String),
    `source`         LowCardinality(String),
    `quota_key`      LowCardinality(String),
    `user`           LowCardinality(String)    COMMENT 'metric tag user of the bucket',
    `client_id`      LowCardinality(String)    COMMENT 'metric tag client-id of the bucket',
    `broker_id`      Int32,
    `made_at`        DateTime64(3, 'UTC'),
    `limit`          Float64,
    `utilization`    Float64                   COMMENT 'p95 of the newest five minutes',
    `hits_limit_at`  Nullable(DateTime64(3, 'UTC'))   COMMENT 'median forecast; NULL: not in sight',
    `earliest`       Nullable(DateTime64(3, 'UTC'))   COMMENT 'when the 90 % quantile reaches the limit',
    `latest`         Nullable(DateTime64(3, 'UTC'))   COMMENT 'when the 10 % quantile does',
    `confidence`     Float64                   COMMENT 'probability that the limit is reached within the horizon',
    `p10`            Array(Float64)            COMMENT 'demand per five minutes from made_at on, as a share of the limit',
    `p50`            Array(Float64),
    `p90`            Array(Float64),
    `within_24h`     Nullable(Float64)         COMMENT 'probability that the limit is reached within 24 hours; NULL with less than two days of history',
    `within_7d`      Nullable(Float64)         COMMENT 'the same within seven days',
    `next_hit_at`    Nullable(DateTime64(3, 'UTC')) COMMENT 'when it is reached next within seven days, to the hour; NULL: not likely',
    `reason`         String,
    `run_id`         UUID
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(made_at)
ORDER BY (cluster, source, quota_key, user, client_id, broker_id, made_at)
TTL toDateTime(made_at) + INTERVAL 90 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;

-- First or better quotas by usage. A run writes all its rows at once.
CREATE TABLE IF NOT EXISTS {{database}}.quota_suggestions
(
{{columns_of_suggestion}}
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(made_at)
ORDER BY (cluster, source, made_at, quota_key, kind, user, client_id)
TTL toDateTime(made_at) + INTERVAL 400 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;

-- Those of the newest run for each cluster.
CREATE VIEW IF NOT EXISTS {{database}}.quota_suggestions_now
(
{{columns_of_suggestion}}
) AS
SELECT s.*
FROM {{database}}.quota_suggestions AS s FINAL
INNER JOIN (
    SELECT cluster, source, max(made_at) AS made_at FROM {{database}}.quota_suggestions GROUP BY cluster, source
) AS newest USING (cluster, source, made_at)
SETTINGS {{settings_of_views}};
