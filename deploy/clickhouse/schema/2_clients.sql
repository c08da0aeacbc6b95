-- Who pushed, which client instances there are, which software they run and what is known to be wrong with it.

CREATE TABLE IF NOT EXISTS {{database}}.pushes
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
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000, fsync_after_insert = 1,
         fsync_part_directory = 1;

-- Rows add up: read with FINAL, or GROUP BY with min, max, sum and anyLast. Written by the ingester, one row per
-- instance and batch; `pushes` and `points` are exact because each batch is written once (deduplication token).
-- instance_key: silent_clients adds up rows by a number in a third of the time that the names take.
CREATE TABLE IF NOT EXISTS {{database}}.client_instances
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
    `points`             SimpleAggregateFunction(sum, UInt64),
    `instance_key`       UInt64 MATERIALIZED cityHash64(cluster, principal, client_id, client_instance_id)
                         COMMENT 'the key of the table as a number' CODEC(NONE)
)
ENGINE = AggregatingMergeTree
ORDER BY (cluster, principal, client_id, client_instance_id)
TTL toDateTime(last_seen) + INTERVAL 30 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- `fixed_in` is the first version without the issue, `since` the first with it. Only what concerns telemetry.
CREATE VIEW IF NOT EXISTS {{database}}.known_client_issues
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

-- Each version of client software in client_instances, and what is known of it.
CREATE VIEW IF NOT EXISTS {{database}}.client_versions
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `library`          String                  COMMENT 'the library that pushes; a binding of librdkafka names itself',
    `library_version`  String                  COMMENT 'its version',
    `known_issue`      String                  COMMENT 'what is known to be wrong with this version; empty: nothing'
) AS
WITH
    libraries AS
    (
        SELECT
            *,
            multiIf(
                bound_version != '' OR software_name IN ('confluent-kafka-go', 'confluent-kafka-dotnet'), 'librdkafka',
                software_name = 'kgo', 'franz-go',
                software_name
            ) AS library,
            if(bound_version != '', bound_version, extract(software_version, '^v?(\\d+(?:\\.\\d+)+)')) AS library_version,
            arrayMap(part -> toUInt32OrZero(part), splitByChar('.', library_version)) AS numbers
        FROM
        (
            SELECT DISTINCT cluster, software_name, software_version,
                   extract(software_version, 'rdkafka-v?(\\d+(?:\\.\\d+)+)') AS bound_version
            FROM {{database}}.client_instances
        )
    ),
    issues AS
    (
        SELECT
            library, issue,
            arrayMap(part -> toUInt32(part), splitByChar('.', since)) AS first,
            arrayMap(part -> toUInt32(part), splitByChar('.', fixed_in)) AS fixed
        FROM {{database}}.known_client_issues
    )
SELECT
    cluster, software_name, software_version, library, library_version,
    arrayStringConcat(
        arrayMap(
            known -> tupleElement(known, 2),
            arrayFilter(
                known -> tupleElement(known, 1) = library AND numbers >= tupleElement(known, 3)
                         AND numbers < tupleElement(known, 4),
                (SELECT groupArray((library, issue, first, fixed)) FROM issues)
            )
        ),
        '; '
    ) AS known_issue
FROM libraries
SETTINGS {{settings_of_views}};

-- Client software with a known telemetry bug.
CREATE VIEW IF NOT EXISTS {{database}}.bad_client_versions
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `software_name`    LowCardinality(String)  COMMENT 'client software as it named itself',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `library`          String                  COMMENT 'the library that pushes; a binding of librdkafka names itself',
    `library_version`  String                  COMMENT 'its version',
    `instances`        UInt64                  COMMENT 'client instances heard of in 15 minutes',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when one of them was heard of last',
    `known_issue`      String                  COMMENT 'what is known to be wrong with this version'
) AS
SELECT i.cluster AS cluster, i.software_name AS software_name, i.software_version AS software_version,
       v.library AS library, v.library_version AS library_version, i.instances AS instances, i.seen AS last_seen,
       v.known_issue AS known_issue
FROM
(
    SELECT cluster, software_name, software_version, count() AS instances, max(newest) AS seen
    FROM
    (
        SELECT cluster, software_name, software_version, max(last_seen) AS newest
        FROM {{database}}.client_instances
        WHERE last_seen > now() - INTERVAL 15 MINUTE
          AND (software_name, software_version) IN
              (SELECT software_name, software_version FROM {{database}}.client_versions WHERE known_issue != '')
        GROUP BY cluster, software_name, software_version, principal, client_id, client_instance_id
        HAVING max(terminated) = 0
    )
    GROUP BY cluster, software_name, software_version
) AS i
INNER JOIN {{database}}.client_versions AS v
    ON i.cluster = v.cluster AND i.software_name = v.software_name AND i.software_version = v.software_version
SETTINGS {{settings_of_views}};

-- One row per software that client instances named when they connected. The library is what pushes: a binding of
-- librdkafka names itself, and has librdkafka's version in its own (2.16.1-rdkafka-2.16.0), or for its own.
-- `instances` are those heard of in 15 minutes, three times the longest push interval, that sent no terminating push.
CREATE VIEW IF NOT EXISTS {{database}}.client_software
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
    FROM (SELECT * EXCEPT last_seen, last_seen AS seen FROM {{database}}.client_instances FINAL)
    GROUP BY cluster, software_name, software_version
) AS s
INNER JOIN {{database}}.client_versions AS v
    ON s.cluster = v.cluster AND s.software_name = v.software_name AND s.software_version = v.software_version
SETTINGS {{settings_of_views}};

-- Client instances heard of in the last 15 minutes that did not push a terminating push, by client.
CREATE VIEW IF NOT EXISTS {{database}}.client_instances_now
(
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `instances`        UInt32                  COMMENT 'client instances',
    `software_name`    LowCardinality(String)  COMMENT 'client software of the newest, as it named itself in ApiVersions',
    `software_version` LowCardinality(String)  COMMENT 'its version',
    `last_seen`        DateTime64(3, 'UTC')    COMMENT 'when the newest was heard of last',
    `first_seen`       DateTime64(3, 'UTC')    COMMENT 'when the oldest was heard of first',
    `pushes`           UInt64                  COMMENT 'their pushes'
) AS
SELECT
    cluster, principal AS user, client_id, toUInt32(count()) AS instances,
    argMax(instance_software_name, seen) AS software_name, argMax(instance_software_version, seen) AS software_version,
    max(seen) AS last_seen, min(first) AS first_seen, sum(instance_pushes) AS pushes
FROM
(
    SELECT cluster, principal, client_id, client_instance_id, anyLast(software_name) AS instance_software_name,
           anyLast(software_version) AS instance_software_version, max(last_seen) AS seen, min(first_seen) AS first,
           sum(pushes) AS instance_pushes
    FROM {{database}}.client_instances
    WHERE last_seen > now() - INTERVAL 15 MINUTE
    GROUP BY cluster, principal, client_id, client_instance_id
    HAVING max(terminated) = 0
)
GROUP BY cluster, principal, client_id
SETTINGS {{settings_of_views}};
