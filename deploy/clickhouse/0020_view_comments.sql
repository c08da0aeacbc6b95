-- The columns of four views with comments, which a view has only from its list of columns.

DROP VIEW IF EXISTS headroom.client_metrics_1h;

CREATE VIEW IF NOT EXISTS headroom.client_metrics_1h
(
    `cluster` LowCardinality(String) COMMENT 'name of the Kafka cluster',
    `metric` LowCardinality(String) COMMENT 'OTLP metric name, verbatim',
    `bucket` DateTime('UTC') COMMENT 'beginning of the hour',
    `principal` LowCardinality(String) COMMENT 'user name of the connection; claimed:NAME when an OTLP sender was not authenticated',
    `client_id` LowCardinality(String) COMMENT 'client.id of the requests',
    `client_instance_id` UUID COMMENT 'KIP-714''s id of one running client',
    `series_id` UInt64 COMMENT 'id of the time series, joins series',
    `temporality` Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2) COMMENT 'OTLP aggregation temporality; unspecified for gauges',
    `min` Float64 COMMENT 'smallest value of the hour',
    `max` Float64 COMMENT 'largest value of the hour',
    `sum` Float64 COMMENT 'sum of the values; of a delta sum what it grew by in the hour',
    `count` UInt64 COMMENT 'number of values',
    `last` Float64 COMMENT 'newest value of the hour',
    `points` UInt64 COMMENT 'points that the hour was computed from'
) AS
SELECT cluster, metric, bucket, principal, client_id, client_instance_id, series_id, temporality, min, max, sum, count,
       last, points
FROM headroom.points_1h FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

DROP VIEW IF EXISTS headroom.known_client_issues;

CREATE VIEW IF NOT EXISTS headroom.known_client_issues
(
    `library` String COMMENT 'the client library',
    `since` String COMMENT 'first version with the issue',
    `fixed_in` String COMMENT 'first version without it',
    `issue` String COMMENT 'what is wrong, as far as telemetry is concerned'
) AS
SELECT library, since, fixed_in, issue
FROM values(
    'library String, since String, fixed_in String, issue String',
    ('librdkafka', '2.5.0', '2.5.3',
     'its process ends on an assertion when it has none of the metrics that it is asked for (librdkafka 4833)'),
    ('librdkafka', '2.5.3', '2.10.1',
     'pushes null when it has none of the metrics that it is asked for: brokers close the connection, Headroom does not (librdkafka 5106)'),
    ('franz-go', '1.20.4', '1.20.5', 'client metrics do not work'),
    ('franz-go', '1.0.0', '1.21.4', 'wrong .rate and .avg, no terminating push')
);

DROP VIEW IF EXISTS headroom.client_software;

CREATE VIEW IF NOT EXISTS headroom.client_software
(
    `cluster` LowCardinality(String) COMMENT 'name of the Kafka cluster',
    `software_name` LowCardinality(String) COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String) COMMENT 'its version',
    `library` String COMMENT 'the library that pushes; a binding of librdkafka names itself',
    `library_version` String COMMENT 'its version',
    `instances` UInt64 COMMENT 'client instances heard of in 15 minutes that sent no terminating push',
    `last_seen` DateTime64(3, 'UTC') COMMENT 'when one of them was heard of last',
    `known_issue` String COMMENT 'what is known to be wrong with this version; empty: nothing'
) AS
SELECT s.cluster AS cluster, s.software_name AS software_name, s.software_version AS software_version,
       v.library AS library, v.library_version AS library_version, s.instances AS instances, s.newest AS last_seen,
       v.known_issue AS known_issue
FROM
(
    SELECT cluster, software_name, software_version,
           countIf(seen > now() - INTERVAL 15 MINUTE AND NOT terminated) AS instances, max(seen) AS newest
    FROM (SELECT * EXCEPT last_seen, last_seen AS seen FROM headroom.client_instances FINAL)
    GROUP BY cluster, software_name, software_version
) AS s
INNER JOIN headroom.client_versions AS v
    ON s.cluster = v.cluster AND s.software_name = v.software_name AND s.software_version = v.software_version;

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
