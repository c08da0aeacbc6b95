-- What clients push. A point is lean: what queries filter and order by; the rest stands once per series. PRIMARY KEY is
-- shorter than ORDER BY on purpose: with a bare `ts` in it, toStartOfHour(ts) would not prune.
-- non_replicated_deduplication_window: without it insert_deduplication_token does nothing on a plain MergeTree.
-- fsync_after_insert, fsync_part_directory: an insert is acknowledged when its rows survive a power loss, because the
-- worker frees the spool's copy then. Merges need no such setting: ClickHouse keeps the parts that it merged for
-- old_parts_lifetime (8 minutes), far longer than the kernel keeps pages that are not written back.

-- Merges cost more than inserts, and rows of points have a long key: fewer, larger merges (a row is merged half as
-- often), and columns that are no key are merged one by one. A merge compares and copies rows by the sorting key, and
-- takes a third less CPU with plain strings than with LowCardinality, whose dictionaries differ from part to part; on
-- disk sorted strings take as little space.
CREATE TABLE IF NOT EXISTS {{database}}.points
(
    `cluster`            String                    COMMENT 'name of the Kafka cluster',
    `metric`             String                    COMMENT 'OTLP metric name, verbatim',
    `ts`                 DateTime64(3, 'UTC')      COMMENT 'when the client measured' CODEC(Delta(8), ZSTD(1)),
    `principal`          String                    COMMENT 'user name of the connection',
    `client_id`          String                    COMMENT 'client id of the push',
    `client_instance_id` UUID                      CODEC(ZSTD(1)),
    `series_id`          UInt64                    COMMENT 'xxh3 of cluster, metric, instance, sorted attributes, temporality' CODEC(ZSTD(1)),
    `value`              Float64                   CODEC(Delta(8), ZSTD(1)),
    `int_value`          Nullable(Int64)           COMMENT 'exact value, only when |v| > 2^53' CODEC(Delta(8), ZSTD(1)),
    `flags`              UInt8                     COMMENT 'OTLP data point flags, bit 0 = no recorded value',
    `interval_ms`        UInt32                    COMMENT 'ts - start_ts; 0 when the client sent no start time' CODEC(T64, ZSTD(1)),
    `received_at`        DateTime64(3, 'UTC')      CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toDate(ts)
PRIMARY KEY (cluster, metric, toStartOfHour(ts), principal, client_id)
ORDER BY (cluster, metric, toStartOfHour(ts), principal, client_id, client_instance_id, series_id, ts)
TTL toDateTime(ts) + INTERVAL 14 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1,
         fsync_part_directory = 1, merge_selector_base = 10, vertical_merge_algorithm_min_columns_to_activate = 1;

-- Series by metric: client_metrics joins the series of the metrics that a query names, and no others. Plain strings: a
-- merge takes a quarter of the CPU (1.0 us a row instead of 4.2), as in points, and the same space. LowCardinality keys
-- of maps alone cost three times as much. Merges of this table are most of what a new fleet costs.
CREATE TABLE IF NOT EXISTS {{database}}.series
(
    `series_id`          UInt64                                COMMENT 'xxh3 of cluster, metric, instance, sorted attributes, temporality',
    `cluster`            String                                COMMENT 'name of the Kafka cluster',
    `metric`             String                                COMMENT 'OTLP metric name, verbatim',
    `principal`          String                                COMMENT 'user name of the connection',
    `client_id`          String                                COMMENT 'client id of the push',
    `client_instance_id` UUID                                  COMMENT 'client instance, as KIP-714 names it',
    `kind`               Enum8('gauge' = 1, 'sum' = 2)         COMMENT 'OTLP metric kind',
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2)  COMMENT 'OTLP aggregation temporality',
    `monotonic`          Bool                                  COMMENT 'whether a sum only grows',
    `unit`               String                                COMMENT 'OTLP unit',
    `attributes`         Map(String, String)                   COMMENT 'data point attributes (topic, partition, node_id)',
    `resource`           Map(String, String)                   COMMENT 'resource attributes',
    `scope_name`         String                                COMMENT 'OTLP instrumentation scope',
    `scope_version`      String                                COMMENT 'its version',
    `software_name`      String                                COMMENT 'from ApiVersions of the connection',
    `software_version`   String                                COMMENT 'from ApiVersions of the connection',
    `source_address`     String                                COMMENT 'address of the client',
    `broker_id`          Int32 DEFAULT -1                      COMMENT 'the broker that the connection leads to',
    `last_seen`          DateTime64(3, 'UTC')                  COMMENT 'when the series was described last'
)
ENGINE = ReplacingMergeTree(last_seen)
ORDER BY (cluster, metric, series_id)
TTL toDateTime(last_seen) + INTERVAL 30 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- What users read. A join, not a dictionary: a dictionary with a lifetime would lag behind a new series, and the first
-- minutes of a client are when somebody looks. FINAL on the small side only, so that a series that was written again
-- counts once and with its newest connection. `SETTINGS final = 1` deduplicates points as well.
--
-- The setting: with the join step that is the default since 25.8, a condition on p.metric does not reach s.metric,
-- which equals it, and each query reads all series.
CREATE VIEW IF NOT EXISTS {{database}}.client_metrics
(
    `cluster`            LowCardinality(String)   COMMENT 'name of the Kafka cluster',
    `metric`             LowCardinality(String)   COMMENT 'OTLP metric name, verbatim',
    `ts`                 DateTime64(3, 'UTC')     COMMENT 'when the client measured',
    `principal`          LowCardinality(String)   COMMENT 'user name of the connection',
    `client_id`          LowCardinality(String)   COMMENT 'client id of the push',
    `client_instance_id` UUID                     COMMENT 'client instance, as KIP-714 names it',
    `series_id`          UInt64                   COMMENT 'xxh3 of cluster, metric, instance, sorted attributes, temporality',
    `value`              Float64                  COMMENT 'the number; NaN when nothing was measured',
    `int_value`          Nullable(Int64)          COMMENT 'exact value, only when |v| > 2^53',
    `kind`               Enum8('gauge' = 1, 'sum' = 2)  COMMENT 'OTLP metric kind',
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2)  COMMENT 'OTLP aggregation temporality',
    `monotonic`          Bool                     COMMENT 'whether a sum only grows',
    `flags`              UInt8                    COMMENT 'OTLP data point flags, bit 0 = no recorded value',
    `interval_ms`        UInt32                   COMMENT 'ts - start_ts; 0 when the client sent no start time',
    `unit`               LowCardinality(String)   COMMENT 'OTLP unit',
    `software_name`      LowCardinality(String)   COMMENT 'from ApiVersions of the connection',
    `software_version`   LowCardinality(String)   COMMENT 'from ApiVersions of the connection',
    `source_address`     LowCardinality(String)   COMMENT 'address of the client',
    `broker_id`          Int32                    COMMENT 'the broker that the connection leads to',
    `attributes`         Map(LowCardinality(String), String)  COMMENT 'data point attributes (topic, partition, node_id)',
    `resource`           Map(LowCardinality(String), String)  COMMENT 'resource attributes',
    `scope_name`         LowCardinality(String)   COMMENT 'OTLP instrumentation scope',
    `scope_version`      LowCardinality(String)   COMMENT 'its version',
    `received_at`        DateTime64(3, 'UTC')     COMMENT 'when Headroom received the push'
) AS
SELECT
    p.cluster AS cluster, p.metric AS metric, p.ts AS ts, p.principal AS principal, p.client_id AS client_id,
    p.client_instance_id AS client_instance_id, p.series_id AS series_id, p.value AS value, p.int_value AS int_value,
    s.kind AS kind, s.temporality AS temporality, s.monotonic AS monotonic, p.flags AS flags,
    p.interval_ms AS interval_ms, s.unit AS unit, s.software_name AS software_name,
    s.software_version AS software_version, s.source_address AS source_address, s.broker_id AS broker_id,
    s.attributes AS attributes, s.resource AS resource, s.scope_name AS scope_name, s.scope_version AS scope_version,
    p.received_at AS received_at
FROM {{database}}.points AS p
LEFT ANY JOIN (
    SELECT cluster, metric, series_id, kind, temporality, monotonic, unit, software_name, software_version,
           source_address, broker_id, attributes, resource, scope_name, scope_version
    FROM {{database}}.series FINAL
) AS s ON p.series_id = s.series_id AND p.metric = s.metric AND p.cluster = s.cluster
SETTINGS query_plan_use_new_logical_join_step = 0, {{settings_of_views}};

CREATE TABLE IF NOT EXISTS {{database}}.client_histograms
(
    `cluster`            LowCardinality(String),
    `metric`             LowCardinality(String),
    `ts`                 DateTime64(3, 'UTC')      CODEC(Delta(8), ZSTD(1)),
    `principal`          LowCardinality(String),
    `client_id`          LowCardinality(String),
    `client_instance_id` UUID                      CODEC(ZSTD(1)),
    `series_id`          UInt64                    CODEC(ZSTD(1)),
    `kind`               Enum8('histogram' = 3, 'exp_histogram' = 4, 'summary' = 5),
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2),
    `flags`              UInt8,
    `interval_ms`        UInt32                    CODEC(T64, ZSTD(1)),
    `unit`               LowCardinality(String),
    `count`              UInt64                    CODEC(Delta(8), ZSTD(1)),
    `sum`                Nullable(Float64)         CODEC(ZSTD(1)),
    `min`                Nullable(Float64)         CODEC(ZSTD(1)),
    `max`                Nullable(Float64)         CODEC(ZSTD(1)),
    `bounds`             Array(Float64)            CODEC(ZSTD(1)),
    `bucket_counts`      Array(UInt64)             CODEC(ZSTD(1)),
    `scale`              Int8,
    `zero_count`         UInt64                    CODEC(ZSTD(1)),
    `zero_threshold`     Float64                   CODEC(ZSTD(1)),
    `pos_offset`         Int32                     CODEC(ZSTD(1)),
    `pos_counts`         Array(UInt64)             CODEC(ZSTD(1)),
    `neg_offset`         Int32                     CODEC(ZSTD(1)),
    `neg_counts`         Array(UInt64)             CODEC(ZSTD(1)),
    `quantiles`          Array(Tuple(q Float64, v Float64))    CODEC(ZSTD(1)),
    `attributes`         Map(LowCardinality(String), String)   CODEC(ZSTD(1)),
    `resource`           Map(LowCardinality(String), String)   CODEC(ZSTD(1)),
    `received_at`        DateTime64(3, 'UTC')      CODEC(Delta(8), ZSTD(1)),
    INDEX ix_instance client_instance_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toDate(ts)
PRIMARY KEY (cluster, metric, toStartOfHour(ts), principal, client_id)
ORDER BY (cluster, metric, toStartOfHour(ts), principal, client_id, client_instance_id, series_id, ts)
TTL toDateTime(ts) + INTERVAL 14 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1,
         fsync_part_directory = 1;

-- One row per series and hour, computed whole from raw points (telemetry/rollups.py) and replaced by the next
-- computation: no materialized view, which would count a batch twice after a crash and costs more than all the rest.
-- The version is the number of points: raw points of an hour only become more, until they go for their age; so the
-- fuller computation counts, whichever was written later.
CREATE TABLE IF NOT EXISTS {{database}}.points_1h
(
    `cluster`            LowCardinality(String),
    `metric`             LowCardinality(String),
    `bucket`             DateTime('UTC')           COMMENT 'beginning of the hour' CODEC(Delta(4), ZSTD(1)),
    `principal`          LowCardinality(String),
    `client_id`          LowCardinality(String),
    `client_instance_id` UUID                      CODEC(ZSTD(1)),
    `series_id`          UInt64                    CODEC(ZSTD(1)),
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2),
    `min`                Float64                   COMMENT 'NaN when nothing was measured' CODEC(Delta(8), ZSTD(1)),
    `max`                Float64                   CODEC(Delta(8), ZSTD(1)),
    `sum`                Float64                   COMMENT 'of a delta series: how much in the hour' CODEC(Delta(8), ZSTD(1)),
    `count`              UInt64                    COMMENT 'points with a number: those in min, max, sum and last' CODEC(T64, ZSTD(1)),
    `last`               Float64                   COMMENT 'the newest number' CODEC(ZSTD(1)),
    `points`             UInt64                    COMMENT 'all points, those without a value and NaN among them' CODEC(T64, ZSTD(1))
)
ENGINE = ReplacingMergeTree(points)
PARTITION BY toYYYYMM(bucket)
PRIMARY KEY (cluster, metric, toDate(bucket), principal, client_id)
ORDER BY (cluster, metric, toDate(bucket), principal, client_id, client_instance_id, series_id, bucket)
TTL bucket + INTERVAL 400 DAY DELETE
SETTINGS ttl_only_drop_parts = 1;

-- What users read: each hour once, as it was computed last.
CREATE VIEW IF NOT EXISTS {{database}}.client_metrics_1h
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
FROM {{database}}.points_1h FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- What the worker writes and reads back when it starts: whether this store keeps rows is seen before the first batch.
CREATE TABLE IF NOT EXISTS {{database}}.write_checks
(
    `checked_at` DateTime64(3, 'UTC') DEFAULT now64(3),
    `token`      String
)
ENGINE = MergeTree
ORDER BY checked_at
TTL toDateTime(checked_at) + INTERVAL 1 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
