-- How fast the usage of a bucket changes, and how much it may send at once.

ALTER TABLE headroom.quota_utilization
    ADD COLUMN IF NOT EXISTS `trend_per_min` Nullable(Float64) COMMENT 'change of group_usage per minute over the last ten windows; NULL with fewer than three' AFTER `eta_s`,
    ADD COLUMN IF NOT EXISTS `burst_credit` Nullable(Float64) COMMENT 'bytes that the bucket may send at once on this broker before it is throttled, at the end of the window' AFTER `trend_per_min`;

ALTER TABLE headroom.quota_utilization_staging
    ADD COLUMN IF NOT EXISTS `trend_per_min` Nullable(Float64) AFTER `eta_s`,
    ADD COLUMN IF NOT EXISTS `burst_credit` Nullable(Float64) AFTER `trend_per_min`;

-- The rows of committed windows only, each window as one run wrote it.
DROP VIEW IF EXISTS headroom.quota_utilization_committed;

CREATE VIEW IF NOT EXISTS headroom.quota_utilization_committed
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
    `level` Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4) COMMENT 'ok, watch, warn, critical, throttled or unknown',
    `instant_level` Enum8('unknown' = -1, 'ok' = 0, 'watch' = 1, 'warn' = 2, 'critical' = 3, 'throttled' = 4) COMMENT 'the level without hysteresis',
    `reason` String COMMENT 'the level in words',
    `software_name` LowCardinality(String) COMMENT 'client software, from ApiVersions',
    `software_version` LowCardinality(String) COMMENT 'version of that software',
    `samples` UInt64 COMMENT 'rows of quota_usage behind it',
    `complete` UInt8 COMMENT '0: the window had not ended when the job ran',
    `run_id` UUID COMMENT 'id of the run that wrote the row',
    `run_version` UInt64 COMMENT 'orders runs: the newest row counts'
) AS
SELECT u.* EXCEPT is_deleted
FROM headroom.quota_utilization AS u FINAL
INNER JOIN (
    SELECT cluster, source, window_s, window_start, run_version FROM headroom.quota_utilization_windows FINAL
) AS w USING (cluster, source, window_s, window_start, run_version);
