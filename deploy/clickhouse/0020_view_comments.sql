-- The columns of three views with comments, which a view has only from its list of columns.

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
