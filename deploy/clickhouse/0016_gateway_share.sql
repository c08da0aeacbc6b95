-- How much of what the brokers meter passes the gateways: their JMX sensors beside ours, in the seconds in which a sensor
-- was read. What is missing are bytes of clients that reach the brokers by another way.
CREATE VIEW IF NOT EXISTS headroom.gateway_share
(
    `cluster`        LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `quota_key`      LowCardinality(String)  COMMENT 'producer_byte_rate or consumer_byte_rate',
    `user`           LowCardinality(String)  COMMENT 'user tag of the broker''s metric; empty: all users share it',
    `client_id`      LowCardinality(String)  COMMENT 'client-id tag of the broker''s metric; empty: all client ids share it',
    `broker_id`      Int32                   COMMENT 'the broker',
    `broker_rate`    Float64                 COMMENT 'mean rate that the broker metered, in the seconds in which it was read',
    `gateway_rate`   Float64                 COMMENT 'mean rate that all gateways metered in the same seconds',
    `share`          Float64                 COMMENT 'gateway_rate / broker_rate: 0.62 is "we see 62 % of this client"',
    `bypassing_rate` Float64                 COMMENT 'rate that passed no gateway',
    `samples`        UInt64                  COMMENT 'seconds in which the broker was read',
    `last_sample`    DateTime('UTC')         COMMENT 'the newest of them'
) AS
WITH
    toStartOfMinute(now('UTC') - INTERVAL 2 MINUTE) AS since,
    now64(3, 'UTC') - INTERVAL 4 SECOND AS until
SELECT
    b.cluster AS cluster, b.quota_key AS quota_key, b.user AS user, b.client_id AS client_id, b.broker_id AS broker_id,
    avg(b.rate) AS broker_rate, avg(g.rate) AS gateway_rate, gateway_rate / broker_rate AS share,
    greatest(broker_rate - gateway_rate, 0.) AS bypassing_rate, count() AS samples,
    toDateTime(max(b.second), 'UTC') AS last_sample
FROM
(
    SELECT cluster, quota_key, bucket_user AS user, bucket_client_id AS client_id, broker_id, avg(r.rate) AS rate,
           intDiv(toUnixTimestamp64Milli(ts) + 500, 1000) AS second
    FROM headroom.quota_usage_recent AS r FINAL
    WHERE source = 'jmx' AND minute BETWEEN since AND now('UTC') AND ts <= until
      AND quota_key IN ('producer_byte_rate', 'consumer_byte_rate')
    GROUP BY cluster, quota_key, bucket_user, bucket_client_id, broker_id, second
    HAVING rate > 0
) AS b
LEFT JOIN
(
    SELECT cluster, quota_key, bucket_user, bucket_client_id, broker_id, second, sum(o.rate) AS rate
    FROM
    (
        -- A row holds for each second of its interval.
        SELECT cluster, quota_key, bucket_user, bucket_client_id, broker_id, max(r.rate) AS rate,
               arrayJoin(arrayMap(ago -> intDiv(toUnixTimestamp64Milli(ts) + 500, 1000) - ago,
                                  range(greatest(intDiv(least(interval_ms, 60000) + 500, 1000), 1)))) AS second
        FROM headroom.quota_usage_recent AS r FINAL
        WHERE source = 'gateway' AND minute BETWEEN since - INTERVAL 1 MINUTE AND now('UTC')
          AND quota_key IN ('producer_byte_rate', 'consumer_byte_rate')
          AND (SELECT count() FROM headroom.quota_usage_recent
               WHERE source = 'jmx' AND minute BETWEEN since AND now('UTC')) > 0
        GROUP BY cluster, quota_key, user, client_id, ip, broker_id, gateway_id, bucket_user, bucket_client_id, second
    ) AS o
    GROUP BY cluster, quota_key, bucket_user, bucket_client_id, broker_id, second
) AS g
    ON b.cluster = g.cluster AND b.quota_key = g.quota_key AND b.user = g.bucket_user
   AND b.client_id = g.bucket_client_id AND b.broker_id = g.broker_id AND b.second = g.second
GROUP BY cluster, quota_key, user, client_id, broker_id;
