-- Who pushed, and which client instances there are.

CREATE TABLE IF NOT EXISTS headroom.pushes
(
    `cluster`            LowCardinality(String),
    `received_at`        DateTime64(3, 'UTC')      CODEC(Delta(8), ZSTD(1)),
    `push_id`            UUID                      COMMENT 'unique; here and not in points, where it would be two thirds of the table',
    `transport`          Enum8('kafka' = 1, 'otlp_http' = 2, 'otlp_grpc' = 3, 'file' = 4),
    `principal`          LowCardinality(String),
    `client_id`          LowCardinality(String),
    `client_instance_id` UUID                      CODEC(ZSTD(1)),
    `subscription_id`    Int32,
    `compression`        LowCardinality(String),
    `terminating`        Bool,
    `bytes`              UInt32                    COMMENT 'as received' CODEC(T64, ZSTD(1)),
    `uncompressed_bytes` UInt32                    CODEC(T64, ZSTD(1)),
    `points`             UInt32                    CODEC(T64, ZSTD(1)),
    `error_code`         Int16                     COMMENT 'Kafka error code; 0 when the points were stored' CODEC(ZSTD(1)),
    `broker_id`          Int32 DEFAULT -1,
    `source_address`     LowCardinality(String),
    `software_name`      LowCardinality(String),
    `software_version`   LowCardinality(String)
)
ENGINE = MergeTree
PARTITION BY toDate(received_at)
ORDER BY (cluster, toStartOfHour(received_at), client_id, client_instance_id, received_at)
TTL toDateTime(received_at) + INTERVAL 14 DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- Rows add up: read with FINAL, or GROUP BY with min, max, sum and anyLast. Written by the ingester, one row per
-- instance and batch; `pushes` and `points` are exact because each batch is written once (deduplication token).
CREATE TABLE IF NOT EXISTS headroom.client_instances
(
    `cluster`            LowCardinality(String),
    `client_instance_id` UUID,
    `client_id`          LowCardinality(String),
    `principal`          LowCardinality(String),
    `software_name`      SimpleAggregateFunction(anyLast, LowCardinality(String)),
    `software_version`   SimpleAggregateFunction(anyLast, LowCardinality(String)),
    `source_address`     SimpleAggregateFunction(anyLast, LowCardinality(String)),
    `first_seen`         SimpleAggregateFunction(min, DateTime64(3, 'UTC')),
    `last_seen`          SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    `terminated`         SimpleAggregateFunction(max, UInt8),
    `pushes`             SimpleAggregateFunction(sum, UInt64),
    `points`             SimpleAggregateFunction(sum, UInt64)
)
ENGINE = AggregatingMergeTree
ORDER BY (cluster, principal, client_id, client_instance_id)
TTL toDateTime(last_seen) + INTERVAL 30 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000;
