-- Each client at each broker in the newest minutes that have ended, as headroom.minute_levels computes it: what the views
-- of now, the pages, `headroom top` and the metrics of levels read. Planning minute_levels and computing a minute takes
-- longer than reading this table, so `headroom serve` writes it once for each minute, and again when more rows of the minute
-- arrive. A minute is always written as a whole: of a window the rows of the newest computed_at count.
CREATE TABLE IF NOT EXISTS headroom.headroom_minutes
(
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the minute',
    `computed_at`      DateTime64(3, 'UTC')    COMMENT 'when the minute was computed; the rows of the newest count',
    `is_worst`         UInt8                   COMMENT '1: the worst broker of this client in this minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           LowCardinality(String)  COMMENT 'who measured the usage: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32                   COMMENT 'the broker that served the requests',
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
    `window_s`         UInt32                  COMMENT 'length of the window in seconds',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `instances`        UInt32                  COMMENT 'client instances heard of in 15 minutes; 0 for clients that push no telemetry',
    `pushes`           UInt64                  COMMENT 'their pushes',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when telemetry was heard of last; 1970 without instances'
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(window_start)
PRIMARY KEY (window_start, computed_at, cluster)
ORDER BY (window_start, computed_at, cluster, source, quota_key, user, client_id, broker_id)
TTL window_start + INTERVAL 6 HOUR DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- The minute that is shown: the newest that was computed. One that ended three minutes ago is shown no more: nobody was
-- active since, or nobody computes.
CREATE VIEW IF NOT EXISTS headroom.newest_minute
(
    `window_start` DateTime('UTC')       COMMENT 'beginning of the minute; 1970 when none was computed lately',
    `computed_at`  DateTime64(3, 'UTC')  COMMENT 'when it was computed last'
) AS
SELECT newest.1 AS window_start, newest.2 AS computed_at
FROM
(
    SELECT max((m.window_start, m.computed_at)) AS newest
    FROM headroom.headroom_minutes AS m
    WHERE m.window_start >= now('UTC') - INTERVAL 240 SECOND
);
