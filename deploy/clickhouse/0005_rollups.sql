-- One row per series and hour, computed whole from raw points (telemetry/rollups.py) and replaced by the next
-- computation: no materialized view, which would count a batch twice after a crash and costs more than all the rest.
-- The version is the number of points: raw points of an hour only become more, until they go for their age; so the
-- fuller computation counts, whichever was written later.

CREATE TABLE IF NOT EXISTS headroom.points_1h
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
CREATE VIEW IF NOT EXISTS headroom.client_metrics_1h AS
SELECT cluster, metric, bucket, principal, client_id, client_instance_id, series_id, temporality, min, max, sum, count,
       last, points
FROM headroom.points_1h FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;
