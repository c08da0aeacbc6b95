-- What a client feels (impact) with its numbers, demand beside usage, forecasts beyond three hours.

ALTER TABLE {{database}}.quota_utilization
    ADD COLUMN IF NOT EXISTS `records_lag_max` Nullable(Float64) COMMENT 'records that the consumer is behind in its worst partition, as it reported' AFTER `rebalances`,
    ADD COLUMN IF NOT EXISTS `records_lag_per_min` Nullable(Float64) COMMENT 'change of that per minute over the last ten windows; NULL without a steady one' AFTER `records_lag_max`,
    ADD COLUMN IF NOT EXISTS `records_failed` Nullable(Float64) COMMENT 'records that failed or expired in the producer, as it reported' AFTER `records_lag_per_min`,
    ADD COLUMN IF NOT EXISTS `records_retried` Nullable(Float64) COMMENT 'records that the producer sent again, as it reported' AFTER `records_failed`,
    COMMENT COLUMN `impact` 'none, delayed, falling-behind, losing; unknown without telemetry: what the client feels';

ALTER TABLE {{database}}.quota_utilization_staging
    ADD COLUMN IF NOT EXISTS `records_lag_max` Nullable(Float64) AFTER `rebalances`,
    ADD COLUMN IF NOT EXISTS `records_lag_per_min` Nullable(Float64) AFTER `records_lag_max`,
    ADD COLUMN IF NOT EXISTS `records_failed` Nullable(Float64) AFTER `records_lag_per_min`,
    ADD COLUMN IF NOT EXISTS `records_retried` Nullable(Float64) AFTER `records_failed`;

DROP VIEW IF EXISTS {{database}}.quota_utilization_committed;

-- The rows of committed windows only, each window as one run wrote it.
CREATE VIEW IF NOT EXISTS {{database}}.quota_utilization_committed
(
    `cluster` LowCardinality(String) COMMENT 'name of the Kafka cluster',
    `source` LowCardinality(String) COMMENT 'source of the usage: gateway, jmx or client',
    `quota_key` LowCardinality(String) COMMENT 'Kafka''s quota key, producer_byte_rate and so on',
    `window_start` DateTime('UTC') COMMENT 'a multiple of window_s since the epoch',
    `window_s` UInt32 COMMENT 'length of the window in seconds',
    `user` LowCardinality(String) COMMENT 'principal name; '''' or <default> as in quota entities',
    `client_id` LowCardinality(String) COMMENT 'client.id of the requests',
    `broker_id` Int32 COMMENT 'the worst broker of the window',
    `matched_entity` LowCardinality(String) COMMENT 'the quota entity that won',
    `bucket_user` LowCardinality(String) COMMENT 'metric tag user of the bucket; clients equal in both tags share the quota at each broker',
    `bucket_client_id` LowCardinality(String) COMMENT 'metric tag client-id of the bucket',
    `limit` Nullable(Float64) COMMENT 'NULL when no quota applies',
    `limit_known` UInt8 COMMENT '0: no quota was observed yet, level is unknown',
    `usage` Float64 COMMENT 'mean rate of this client on the worst broker',
    `group_usage` Float64 COMMENT 'mean rate of all clients that share the quota, on the worst broker',
    `usage_avg` Float64 COMMENT 'mean rate',
    `usage_p95` Float64 COMMENT '95th percentile of the rate',
    `usage_max` Float64 COMMENT 'largest rate',
    `utilization` Nullable(Float64) COMMENT 'group_usage / limit, uncapped',
    `utilization_p95` Nullable(Float64) COMMENT '95th percentile of the bucket''s rate per second / limit',
    `throttle_ms_max` Float64 COMMENT 'longest throttle time announced',
    `throttled_s` Float64 COMMENT 'seconds of the window in which the client was muted',
    `client_throttle_ms_max` Nullable(Float64) COMMENT 'as the client itself reported',
    `request_latency_ms_max` Nullable(Float64) COMMENT 'as the client itself reported',
    `queue_time_ms_max` Nullable(Float64) COMMENT 'longest time that records waited in the producer, as it reported',
    `rebalances` Nullable(Float64) COMMENT 'rebalances of the window, as the client reported',
    `records_lag_max` Nullable(Float64) COMMENT 'records that the consumer is behind in its worst partition, as it reported',
    `records_lag_per_min` Nullable(Float64) COMMENT 'change of that per minute over the last ten windows; NULL without a steady one',
    `records_failed` Nullable(Float64) COMMENT 'records that failed or expired in the producer, as it reported',
    `records_retried` Nullable(Float64) COMMENT 'records that the producer sent again, as it reported',
    `outgoing_bytes` Nullable(Float64) COMMENT 'as the client reported',
    `incoming_bytes` Nullable(Float64) COMMENT 'as the client reported',
    `instances` UInt32 COMMENT 'client instances',
    `busiest_instance` String COMMENT 'the client instance that reports most of the bytes, where several share the client id',
    `busiest_instance_share` Nullable(Float64) COMMENT 'its share of what all instances of the client report',
    `shared_with` UInt32 COMMENT 'other clients of the same bucket that were active in the window',
    `culprit_user` LowCardinality(String) COMMENT 'who takes most of a shared bucket on the worst broker',
    `culprit_client_id` LowCardinality(String) COMMENT 'client that uses most of the bucket',
    `culprit_share` Nullable(Float64) COMMENT 'its share of group_usage',
    `usage_rank` UInt32 COMMENT '1: this client takes most of the bucket',
    `eta_s` Nullable(Float64) COMMENT 'seconds until the limit is reached, if the trend of the last ten windows holds',
    `trend_per_min` Nullable(Float64) COMMENT 'change of group_usage per minute over the last ten windows; NULL with fewer than three',
    `burst_credit` Nullable(Float64) COMMENT 'bytes that the bucket may send at once on this broker before it is throttled, at the end of the window',
    `level` {{level_type}} COMMENT 'ok, watch, warn, critical, throttled or unknown',
    `instant_level` {{level_type}} COMMENT 'the level without hysteresis',
    `reason` String COMMENT 'the level in words',
    `impact`                 LowCardinality(String)    COMMENT 'none, delayed, falling-behind, losing; unknown without telemetry: what the client feels',
    `impact_reason`          String                    COMMENT 'the impact in words',
    `software_name` LowCardinality(String) COMMENT 'client software, from ApiVersions',
    `software_version` LowCardinality(String) COMMENT 'version of that software',
    `samples` UInt64 COMMENT 'rows of quota_usage behind it',
    `complete` UInt8 COMMENT '0: the window had not ended when the job ran',
    `run_id` UUID COMMENT 'id of the run that wrote the row',
    `run_version` UInt64 COMMENT 'orders runs: the newest row counts'
) AS
SELECT u.* EXCEPT is_deleted
FROM {{database}}.quota_utilization AS u FINAL
INNER JOIN (
    SELECT cluster, source, window_s, window_start, run_version FROM {{database}}.quota_utilization_windows FINAL
) AS w USING (cluster, source, window_s, window_start, run_version);

ALTER TABLE {{database}}.throttle_forecast
    ADD COLUMN IF NOT EXISTS `within_24h` Nullable(Float64) COMMENT 'probability that the limit is reached within 24 hours; NULL with less than two days of history' AFTER `p90`,
    ADD COLUMN IF NOT EXISTS `within_7d` Nullable(Float64) COMMENT 'the same within seven days' AFTER `within_24h`,
    ADD COLUMN IF NOT EXISTS `next_hit_at` Nullable(DateTime64(3, 'UTC')) COMMENT 'when it is reached next within seven days, to the hour; NULL: not likely' AFTER `within_7d`;

-- A suggested limit goes by demand_high, or by demand_low where that is not known: the busiest five minutes but 1 %.
ALTER TABLE {{database}}.capacity_report
    MODIFY COLUMN `throttled_after` Nullable(Float64) COMMENT 'share of minutes in which the clients want more than the suggested limit; NULL: the demand is not known',
    ADD COLUMN IF NOT EXISTS `demand_low` Float64 COMMENT '99th percentile of five-minute usage: under throttling a lower bound of demand' AFTER `throttled_after`,
    ADD COLUMN IF NOT EXISTS `demand_high` Nullable(Float64) COMMENT 'the same of what the clients would have sent without throttling, at most; NULL: not known' AFTER `demand_low`,
    ADD COLUMN IF NOT EXISTS `demand_source` LowCardinality(String) COMMENT 'what demand_high was taken from' AFTER `demand_high`;
