-- What clients push. A point is lean: what queries filter and order by; the rest stands once per series.
-- PRIMARY KEY is shorter than ORDER BY on purpose: with a bare `ts` in it, toStartOfHour(ts) would not prune.
-- non_replicated_deduplication_window: without it insert_deduplication_token does nothing on a plain MergeTree.

CREATE TABLE IF NOT EXISTS headroom.points
(
    `cluster`            LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `metric`             LowCardinality(String)    COMMENT 'OTLP metric name, verbatim',
    `ts`                 DateTime64(3, 'UTC')      COMMENT 'when the client measured' CODEC(Delta(8), ZSTD(1)),
    `principal`          LowCardinality(String)    COMMENT 'user name of the connection',
    `client_id`          LowCardinality(String),
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
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS headroom.series
(
    `series_id`          UInt64,
    `cluster`            LowCardinality(String),
    `metric`             LowCardinality(String),
    `principal`          LowCardinality(String),
    `client_id`          LowCardinality(String),
    `client_instance_id` UUID,
    `kind`               Enum8('gauge' = 1, 'sum' = 2),
    `temporality`        Enum8('unspecified' = 0, 'delta' = 1, 'cumulative' = 2),
    `monotonic`          Bool,
    `unit`               LowCardinality(String),
    `attributes`         Map(LowCardinality(String), String)   COMMENT 'data point attributes (topic, partition, node_id)',
    `resource`           Map(LowCardinality(String), String),
    `scope_name`         LowCardinality(String),
    `scope_version`      LowCardinality(String),
    `software_name`      LowCardinality(String)                COMMENT 'from ApiVersions of the connection',
    `software_version`   LowCardinality(String),
    `source_address`     LowCardinality(String),
    `broker_id`          Int32 DEFAULT -1                      COMMENT 'the broker that the connection leads to',
    `last_seen`          DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(last_seen)
ORDER BY series_id
TTL toDateTime(last_seen) + INTERVAL 30 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;

-- What users read. A join, not a dictionary: a dictionary with a lifetime would lag behind a new series, and the
-- first minutes of a client are when somebody looks. FINAL on the small side only, so that a series that was
-- written again counts once and with its newest connection. `SETTINGS final = 1` deduplicates points as well.
CREATE VIEW IF NOT EXISTS headroom.client_metrics AS
SELECT
    p.cluster AS cluster, p.metric AS metric, p.ts AS ts, p.principal AS principal, p.client_id AS client_id,
    p.client_instance_id AS client_instance_id, p.series_id AS series_id, p.value AS value, p.int_value AS int_value,
    s.kind AS kind, s.temporality AS temporality, s.monotonic AS monotonic, p.flags AS flags,
    p.interval_ms AS interval_ms, s.unit AS unit, s.software_name AS software_name,
    s.software_version AS software_version, s.source_address AS source_address, s.broker_id AS broker_id,
    s.attributes AS attributes, s.resource AS resource, s.scope_name AS scope_name, s.scope_version AS scope_version,
    p.received_at AS received_at
FROM headroom.points AS p
LEFT ANY JOIN (
    SELECT series_id, kind, temporality, monotonic, unit, software_name, software_version, source_address, broker_id,
           attributes, resource, scope_name, scope_version
    FROM headroom.series FINAL
) AS s ON p.series_id = s.series_id;

CREATE TABLE IF NOT EXISTS headroom.client_histograms
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
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;
