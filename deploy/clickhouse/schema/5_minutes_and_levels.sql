-- Usage, utilisation and muted time of one minute, per client and broker. Definitions: DECISIONS 19.

-- The rows of quota_usage of the last hours once more, ordered by minute: a window of one minute is read without the
-- rest of its hour. Rows that others insert into quota_usage arrive here too.
CREATE TABLE IF NOT EXISTS {{database}}.quota_usage_recent
(
    `minute`             DateTime('UTC')           COMMENT 'the minute of ts',
    `cluster`            LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `source`             Enum8('jmx' = 1, 'gateway' = 2)  COMMENT 'who measured',
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
    `muted_ms`           UInt32                    COMMENT 'time of the interval in which the broker muted the client; 0 for bare samples',
    `limit`              Nullable(Float64)         COMMENT 'quota in force at ts',
    `limit_known`        UInt8                     COMMENT '1: limit is what the cluster had configured at ts',
    `matched_entity`     LowCardinality(String)    COMMENT 'the quota entity that won',
    `bucket_user`        LowCardinality(String)    COMMENT 'metric tag user of the bucket',
    `bucket_client_id`   LowCardinality(String)    COMMENT 'metric tag client-id of the bucket',
    `decided_by`         LowCardinality(String)    COMMENT 'class of the broker that decides instead of limit',
    `implied_limit`      Float64                   COMMENT 'limit that the longest throttle time implies; 0: no estimate',
    `received_at`        DateTime64(3, 'UTC')      COMMENT 'when Headroom stored the row',
    INDEX bare_samples interval_ms TYPE minmax GRANULARITY 1,
    INDEX received_at_range received_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toStartOfHour(minute)
PRIMARY KEY (minute, cluster, source, quota_key)
ORDER BY (minute, cluster, source, quota_key, user, client_id, broker_id, ip, gateway_id, ts)
TTL minute + INTERVAL 6 HOUR DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- producer_byte_rate = Long.MAX_VALUE is a usual way to write "unlimited": rows with a limit that never throttles stay, as
-- rows without a limit. Bad limits are NaN and negative ones.
CREATE MATERIALIZED VIEW IF NOT EXISTS {{database}}.quota_usage_recent_feed TO {{database}}.quota_usage_recent AS
SELECT toStartOfMinute(q.ts) AS minute, q.cluster AS cluster, q.source AS source, q.quota_key AS quota_key, q.ts AS ts,
       q.user AS user, q.client_id AS client_id, q.ip AS ip, q.broker_id AS broker_id, q.gateway_id AS gateway_id,
       q.bytes AS bytes, q.rate AS rate, q.throttle_ms AS throttle_ms, q.interval_ms AS interval_ms,
       q.muted_ms AS muted_ms,
       if(q.`limit` > {{largest_rate}}, NULL, q.`limit`) AS `limit`, q.limit_known AS limit_known,
       q.matched_entity AS matched_entity, q.bucket_user AS bucket_user, q.bucket_client_id AS bucket_client_id,
       q.decided_by AS decided_by, q.implied_limit AS implied_limit, q.received_at AS received_at
FROM {{database}}.quota_usage AS q
WHERE q.ts > now() - INTERVAL 6 HOUR AND q.ts < now() + INTERVAL 1 HOUR
  AND isFinite(q.rate) AND q.rate BETWEEN 0 AND {{largest_rate}} AND ifNull(q.`limit` >= 0, 1);

-- One row per client, broker, gateway and minute, computed whole from quota_usage and replaced by the next computation.
-- `rates` are the mean rates of the sixty seconds: rows add up second by second (sumForEach) before a mean or a
-- quantile is taken, which a quantile state per client does not allow for buckets that several clients share.
CREATE TABLE IF NOT EXISTS {{database}}.usage_1m
(
    `cluster`          LowCardinality(String),
    `source`           LowCardinality(String),
    `quota_key`        LowCardinality(String),
    `window_start`     DateTime('UTC')           CODEC(Delta(4), ZSTD(1)),
    `user`             LowCardinality(String),
    `client_id`        LowCardinality(String),
    `broker_id`        Int32,
    `gateway_id`       LowCardinality(String),
    `ip`               LowCardinality(String),
    `cadence_s`        UInt32                    COMMENT 'seconds that a row covers; 0: bare samples',
    `limit_known`      UInt8,
    `limit`            Float64                   COMMENT '-1: no quota, or not known',
    `matched_entity`   LowCardinality(String),
    `bucket_user`      LowCardinality(String),
    `bucket_client_id` LowCardinality(String),
    `rates`            Array(Float64)            COMMENT 'per second; NaN: no sample' CODEC(ZSTD(1)),
    `area`             Float64                   COMMENT 'sum of rate x interval in ms',
{{summed_columns}},
    `samples`          UInt64,
    `throttle_ms`      Float64                   COMMENT 'longest throttle time',
    `muted_at_ms`      Array(Int32)              COMMENT 'ts of rows by which the broker muted the client, in ms of the minute; of a bare sample also before it',
    `muted_ms`         Array(UInt32)             COMMENT 'of each, for how long: from then on, of a row with an interval within its cadence_s',
    `newest`           DateTime64(3, 'UTC')      COMMENT 'received_at of the newest row behind it',
    `computed_at`      DateTime64(3, 'UTC'),
    `decided_by`       LowCardinality(String)    COMMENT 'class of the broker that decides instead of limit',
    `implied_sum`      Float64                   COMMENT 'sum of the rows'' implied_limit',
    `implied_samples`  UInt64                    COMMENT 'rows that have one'
)
ENGINE = ReplacingMergeTree(computed_at)
PARTITION BY toDate(window_start)
ORDER BY (cluster, source, quota_key, toStartOfHour(window_start), user, client_id, broker_id, gateway_id, ip,
          window_start, cadence_s, limit_known, limit, matched_entity, bucket_user, bucket_client_id)
TTL window_start + INTERVAL 400 DAY DELETE
SETTINGS ttl_only_drop_parts = 1;

-- Which minutes usage_1m holds, and from which rows of quota_usage: a minute with more or newer ones is computed again.
CREATE TABLE IF NOT EXISTS {{database}}.usage_1m_windows
(
    `source`        LowCardinality(String),
    `window_start`  DateTime('UTC')            COMMENT 'a minute',
    `rows`          UInt64                     COMMENT 'usable rows of quota_usage when it was computed',
    `newest`        DateTime64(3, 'UTC')       COMMENT 'received_at of the newest of them',
    `computed_at`   DateTime64(3, 'UTC'),
    `bad_rows`      Map(LowCardinality(String), UInt64)  COMMENT 'by cluster: rows of the minute that are not usable'
)
ENGINE = ReplacingMergeTree(computed_at)
PARTITION BY toYYYYMM(window_start)
ORDER BY (source, window_start)
TTL window_start + INTERVAL 400 DAY DELETE;

-- The thresholds of levels as `headroom serve` has them in its settings; the newest row counts. Jobs read them here.
CREATE TABLE IF NOT EXISTS {{database}}.level_thresholds
(
    `set_at`      DateTime64(3, 'UTC') DEFAULT now64(3)  COMMENT 'when these thresholds were set; the newest count',
{{level_steps}}
    `muted_share` Float64  COMMENT 'muted share of a window at which throttled begins'
)
ENGINE = MergeTree
ORDER BY set_at
SETTINGS non_replicated_deduplication_window = 10000;

-- Which team each client belongs to, by the setting `owners` of `headroom serve`, which writes an active client once an hour
-- (quota_metrics/config/owners.py): what a minute is joined with stays small however many names clients make up. Services with
-- other files have rows of their own.
CREATE TABLE IF NOT EXISTS {{database}}.client_teams
(
    `owners`     UInt64                   COMMENT 'checksum of the teams and patterns that say so',
    `user`       LowCardinality(String)   COMMENT 'user of the connection',
    `client_id`  LowCardinality(String)   COMMENT 'client id of the requests',
    `team`       LowCardinality(String)   COMMENT 'the team; unowned: no pattern fits',
    `matched_at` DateTime('UTC') DEFAULT now('UTC')  COMMENT 'when a service looked last; once an hour for an active client'
)
ENGINE = ReplacingMergeTree(matched_at)
ORDER BY (owners, user, client_id)
TTL matched_at + INTERVAL 7 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;

-- Each client at each broker in the minutes of the last hours. `headroom serve` computes a minute when it has ended, and
-- again when more of its rows arrive (quota_metrics/minutes/live.py). A minute is always written as a whole: of a window
-- the rows of the newest computed_at count.
CREATE TABLE IF NOT EXISTS {{database}}.headroom_minutes
(
{{columns_of_minute}},
{{columns_of_computed}},
    `client_key`       UInt64 MATERIALIZED cityHash64(cluster, source, quota_key, user, client_id) COMMENT 'the client''s rows of one quota: found in less time than by its names'
)
ENGINE = MergeTree
PARTITION BY toStartOfHour(window_start)
PRIMARY KEY (window_start, computed_at, cluster)
ORDER BY (window_start, computed_at, cluster, source, quota_key, user, client_id, broker_id)
TTL window_start + INTERVAL 6 HOUR DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- The same of the last 60 seconds, every `levels.every_ms`: what the views of now, the pages, `headroom top` and the
-- metrics of levels read. Such a window begins within a minute and is no part of the history.
CREATE TABLE IF NOT EXISTS {{database}}.headroom_live
(
{{columns_of_minute}},
{{columns_of_computed}}
)
ENGINE = MergeTree
PARTITION BY toStartOfFiveMinutes(window_start)
PRIMARY KEY (window_start, computed_at, cluster)
ORDER BY (window_start, computed_at, cluster, source, quota_key, user, client_id, broker_id)
TTL window_start + INTERVAL 10 MINUTE DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- Each client on its worst broker in each minute of the last hours, as it was computed last.
CREATE VIEW IF NOT EXISTS {{database}}.headroom_by_minute
(
{{columns_of_minute}}
) AS
SELECT * EXCEPT (computed_at, is_worst, pushes, last_seen, is_onset, own_reason, own_cause, client_place)
FROM {{database}}.headroom_minutes
WHERE is_worst
  AND (window_start, computed_at) IN (
      SELECT m.window_start, max(m.computed_at) FROM {{database}}.headroom_minutes AS m GROUP BY m.window_start);

-- The 60 seconds that are shown: the newest that were computed and have rows, however old; pages say their age. Read from
-- the ends of the primary keys, because max() would read the minutes of six hours.
CREATE VIEW IF NOT EXISTS {{database}}.newest_window
(
    `window_start` DateTime('UTC')       COMMENT 'beginning of the 60 seconds; 1970 when none were computed in six hours',
    `computed_at`  DateTime64(3, 'UTC')  COMMENT 'when they were computed last'
) AS
SELECT assumeNotNull(max(last.window_start)) AS window_start, assumeNotNull(max(last.computed_at)) AS computed_at
FROM
(
    SELECT * FROM
    (
        SELECT * FROM (
            SELECT m.window_start AS window_start, m.computed_at AS computed_at
            FROM {{database}}.headroom_minutes AS m
            ORDER BY m.window_start DESC, m.computed_at DESC
            LIMIT 1)
        UNION ALL
        SELECT * FROM (
            SELECT l.window_start AS window_start, l.computed_at AS computed_at
            FROM {{database}}.headroom_live AS l
            ORDER BY l.window_start DESC, l.computed_at DESC
            LIMIT 1)
    )
    ORDER BY window_start DESC, computed_at DESC
    LIMIT 1
) AS last;

-- The rows of these 60 seconds: each client at each broker.
CREATE VIEW IF NOT EXISTS {{database}}.newest_rows
(
{{columns_of_minute}},
{{columns_of_computed}}
) AS
WITH (SELECT (window_start, computed_at) FROM {{database}}.newest_window) AS newest
SELECT * FROM {{database}}.headroom_minutes WHERE window_start = newest.1 AND computed_at = newest.2
UNION ALL
SELECT * FROM {{database}}.headroom_live WHERE window_start = newest.1 AND computed_at = newest.2;

-- The service that computes levels for all says here that it is there; others look for it
-- (headroom/server/processes/level_schedule.py).
CREATE TABLE IF NOT EXISTS {{database}}.headroom_services
(
    `service`  String                                       COMMENT 'a run of `headroom serve`',
    `seen_at`  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')  COMMENT 'when it was there'
)
ENGINE = ReplacingMergeTree(seen_at)
ORDER BY service
TTL toDateTime(seen_at) + INTERVAL 1 HOUR DELETE
SETTINGS non_replicated_deduplication_window = 10000;
