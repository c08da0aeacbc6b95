-- Usage, utilisation and muted time of one minute, per client and broker. Definitions: DECISIONS 19.

-- The rows of quota_usage of the last hours once more, ordered by minute: a window of one minute is read without the
-- rest of its hour. Rows that others insert into quota_usage arrive here too.
CREATE TABLE IF NOT EXISTS headroom.quota_usage_recent
(
    `minute`             DateTime('UTC')           COMMENT 'the minute of ts',
    `cluster`            LowCardinality(String)    COMMENT 'name of the Kafka cluster',
    `source`             Enum8('jmx' = 1, 'gateway' = 2, 'client' = 3)  COMMENT 'who measured',
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
    `received_at`        DateTime64(3, 'UTC')      COMMENT 'when Headroom stored the row',
    INDEX bare_samples interval_ms TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(received_at)
PARTITION BY toStartOfHour(minute)
PRIMARY KEY (minute, cluster, source, quota_key)
ORDER BY (minute, cluster, source, quota_key, user, client_id, broker_id, ip, gateway_id, ts)
TTL minute + INTERVAL 6 HOUR DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- producer_byte_rate = Long.MAX_VALUE is a usual way to write "unlimited": rows with a limit above 1e15 stay, as rows
-- without a limit. Bad limits are NaN and negative ones.
CREATE MATERIALIZED VIEW IF NOT EXISTS headroom.quota_usage_recent_feed TO headroom.quota_usage_recent AS
SELECT toStartOfMinute(q.ts) AS minute, q.cluster AS cluster, q.source AS source, q.quota_key AS quota_key, q.ts AS ts,
       q.user AS user, q.client_id AS client_id, q.ip AS ip, q.broker_id AS broker_id, q.gateway_id AS gateway_id,
       q.bytes AS bytes, q.rate AS rate, q.throttle_ms AS throttle_ms, q.interval_ms AS interval_ms,
       q.muted_ms AS muted_ms,
       if(q.`limit` > 1e15, NULL, q.`limit`) AS `limit`, q.limit_known AS limit_known,
       q.matched_entity AS matched_entity, q.bucket_user AS bucket_user, q.bucket_client_id AS bucket_client_id,
       q.received_at AS received_at
FROM headroom.quota_usage AS q
WHERE q.ts > now() - INTERVAL 6 HOUR AND q.ts < now() + INTERVAL 1 HOUR
  AND isFinite(q.rate) AND q.rate BETWEEN 0 AND 1e15 AND ifNull(q.`limit` >= 0, 1);

-- From which share of its limit on a client is at a level, and how much of a window a client may be muted before it is
-- `throttled`. Replace this view to move the thresholds; the Spark job has them as settings.
CREATE VIEW IF NOT EXISTS headroom.level_thresholds
(
    `watch`       Float64  COMMENT 'share of the limit at which watch begins',
    `warn`        Float64  COMMENT 'share of the limit at which warn begins',
    `critical`    Float64  COMMENT 'share of the limit at which critical begins',
    `muted_share` Float64  COMMENT 'muted share of a window at which throttled begins'
) AS
SELECT 0.60 AS watch, 0.80 AS warn, 0.95 AS critical, 0.01 AS muted_share;

-- usage_by_minute in four steps, each a view of its own: ClickHouse plans views in views in linear time, subqueries in
-- subqueries in more than that (600 ms against 60 ms for these). A condition on window_start reaches the primary key.
--
-- Meters: what one gateway measured of a client at a broker in a minute. A row of a cadence of n seconds stands for the n
-- seconds of the grid that its ts lies in. A bare sample mutes from ts on, also in the ten minutes after its own.
CREATE VIEW IF NOT EXISTS headroom.minute_meters
(
    `window_start` DateTime('UTC')         COMMENT 'beginning of the minute',
    `cluster`      LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`       String                  COMMENT 'who measured: gateway or jmx',
    `quota_key`    LowCardinality(String)  COMMENT 'what is measured',
    `user`         LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`    LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`    Int32                   COMMENT 'the broker that served the requests',
    `cadence_s`    UInt32                  COMMENT 'seconds that a row covers; 0: bare samples',
    `area`         Float64                 COMMENT 'sum of rate x interval in ms',
    `bytes`        UInt64                  COMMENT 'bytes of the minute',
    `throttle_ms`  Float64                 COMMENT 'longest throttle time announced',
    `bare_muted`   AggregateFunction(intervalLengthSum, Float64, Float64)  COMMENT 'union of the throttle times of bare samples, ms of the minute',
    `quota`        Tuple(UInt8, Float64, String, String, String)  COMMENT 'of the newest row: limit_known, limit (-1: none), matched_entity, bucket_user, bucket_client_id',
    `last_ts`      DateTime64(3, 'UTC')    COMMENT 'ts of the newest row',
    `rates`        Array(Float64)          COMMENT 'mean rate of each second; NaN: no sample',
    `muted`        Array(Float64)          COMMENT 'ms of each second in which the client was muted, of rows with an interval'
) AS
SELECT
    window_start, cluster, source, quota_key, user, client_id, broker_id, cadence_s, area, bytes, throttle_ms, bare_muted,
    quota, last_ts,
    if(cadence_s <= 1, rates_at, arrayMap(
        slot -> rates_at[slot - slot % cadence_s + 1], range(toInt64(60)))) AS rates,
    if(cadence_s <= 1, muted_at, arrayMap(
        slot -> muted_at[slot - slot % cadence_s + 1] / cadence_s, range(toInt64(60)))) AS muted
FROM
(
    SELECT
        r.minute AS window_start, r.cluster AS cluster, toString(r.source) AS source, r.quota_key AS quota_key,
        r.user AS user, r.client_id AS client_id, r.broker_id AS broker_id,
        toUInt32(if(r.interval_ms = 0, 0, greatest(1, least(intDiv(r.interval_ms + 500, 1000), 60)))) AS cadence_s,
        sum(r.rate * least(r.interval_ms, 60000)) AS area,
        avgResample(0, 60, 1)(r.rate, intDiv(toSecond(r.ts), greatest(cadence_s, 1)) * greatest(cadence_s, 1))
            AS rates_at,
        sumResample(0, 60, 1)(toFloat64(least(r.muted_ms, r.interval_ms)),
                              intDiv(toSecond(r.ts), greatest(cadence_s, 1)) * greatest(cadence_s, 1)) AS muted_at,
        sum(r.bytes) AS bytes, max(r.throttle_ms) AS throttle_ms,
        intervalLengthSumStateIf(
            toFloat64(dateDiff('ms', r.minute, r.ts)),
            least(dateDiff('ms', r.minute, r.ts) + ceil(least(r.throttle_ms, 1e9)), 60000.),
            r.interval_ms = 0 AND r.throttle_ms > 0) AS bare_muted,
        argMax((r.limit_known, ifNull(r.`limit`, -1), toString(r.matched_entity), toString(r.bucket_user),
                toString(r.bucket_client_id)), r.ts) AS quota,
        max(r.ts) AS last_ts
    FROM headroom.quota_usage_recent AS r FINAL
    GROUP BY r.minute, r.cluster, r.source, r.quota_key, r.user, r.client_id, r.broker_id, r.gateway_id, r.ip, cadence_s
    UNION ALL
    SELECT
        b.minute + 60 * ahead AS window_start, b.cluster, toString(b.source), b.quota_key, b.user, b.client_id,
        b.broker_id, 0, 0., CAST([], 'Array(Float64)'), CAST([], 'Array(Float64)'), 0, max(b.throttle_ms),
        intervalLengthSumState(0., least(60000., dateDiff('ms', window_start, b.ts) + ceil(least(b.throttle_ms, 1e9)))),
        argMax((b.limit_known, ifNull(b.`limit`, -1), toString(b.matched_entity), toString(b.bucket_user),
                toString(b.bucket_client_id)), b.ts),
        max(b.ts)
    FROM headroom.quota_usage_recent AS b
    ARRAY JOIN range(1, 1 + toUInt32(least(10, intDiv(
        dateDiff('ms', b.minute, b.ts) + ceil(least(b.throttle_ms, 1e9)) - 1, 60000)))) AS ahead
    WHERE b.interval_ms = 0 AND b.throttle_ms > 0 AND isFinite(b.throttle_ms)
    GROUP BY window_start, b.cluster, b.source, b.quota_key, b.user, b.client_id, b.broker_id
);

-- Clients: the sum of a client's meters at a broker, the longest muted time of its meters in each second, and the quota of
-- its newest row. A minute that has not ended counts as far as it has passed.
CREATE VIEW IF NOT EXISTS headroom.minute_clients
(
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           String                  COMMENT 'who measured: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'what is measured',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32                   COMMENT 'the broker that served the requests',
    `rates`            Array(Float64)          COMMENT 'rate of each second, 0 where there is none',
    `sampled`          Array(UInt8)            COMMENT '1 for each second that has a sample',
    `area`             Float64                 COMMENT 'sum of rate x interval in ms',
    `covered`          UInt8                   COMMENT '1: rows have intervals, so seconds without a row are idle',
    `bytes`            UInt64                  COMMENT 'bytes of the minute',
    `throttle_ms`      Float64                 COMMENT 'longest throttle time announced',
    `elapsed_s`        UInt32                  COMMENT 'seconds of the minute that have passed',
    `limit_known`      UInt8                   COMMENT '0: no quota was observed yet',
    `row_limit`        Float64                 COMMENT 'quota in force; -1: none',
    `entity`           String                  COMMENT 'the quota entity that won',
    `tag_user`         String                  COMMENT 'metric tag user of the bucket',
    `tag_client_id`    String                  COMMENT 'metric tag client-id of the bucket',
    `shared_user`      String                  COMMENT 'clients equal in shared_user and shared_client_id are added up',
    `shared_client_id` String                  COMMENT 'metric tag client-id, or the client''s own id without a quota',
    `muted_ms`         Int64                   COMMENT 'how long the broker muted the client',
    `usage`            Float64                 COMMENT 'mean rate',
    `usage_p95`        Float64                 COMMENT '95th percentile of the rate per second'
) AS
SELECT
    window_start, cluster, source, quota_key, user, client_id, broker_id, rates, sampled, area, covered, bytes,
    throttle_ms, elapsed_s, quota.1 AS limit_known, quota.2 AS row_limit, quota.3 AS entity, quota.4 AS tag_user,
    quota.5 AS tag_client_id, if(quota.2 < 0, toString(user), quota.4) AS shared_user,
    if(quota.2 < 0, toString(client_id), quota.5) AS shared_client_id,
    least(toInt64(round(bare_muted_ms + arraySum(muted))), 1000 * toInt64(elapsed_s)) AS muted_ms,
    area / 1000 / if(covered, elapsed_s, greatest(arraySum(sampled), 1)) AS usage,
    ifNotFinite(arrayReduce('quantileExact(0.95)', if(covered, arraySlice(rates, 1, elapsed_s),
        arrayFilter((rate, seen) -> seen > 0, rates, sampled))), 0) AS usage_p95
FROM
(
    SELECT
        m.window_start AS window_start, m.cluster AS cluster, m.source AS source, m.quota_key AS quota_key,
        m.user AS user, m.client_id AS client_id, m.broker_id AS broker_id,
        toUInt32(least(60, greatest(1, dateDiff('second', m.window_start, now('UTC'))))) AS elapsed_s,
        sumForEach(arrayMap(rate -> ifNotFinite(rate, 0), m.rates)) AS rates,
        maxForEach(arrayMap(rate -> toUInt8(isFinite(rate)), m.rates)) AS sampled,
        maxForEach(m.muted) AS muted,
        sum(if(m.cadence_s > 0, m.area, 1000 * arraySum(arrayMap(rate -> ifNotFinite(rate, 0), m.rates)))) AS area,
        max(m.cadence_s > 0) AS covered, sum(m.bytes) AS bytes, max(m.throttle_ms) AS throttle_ms,
        intervalLengthSumMerge(m.bare_muted) AS bare_muted_ms, argMax(m.quota, m.last_ts) AS quota
    FROM headroom.minute_meters AS m
    GROUP BY window_start, cluster, source, quota_key, user, client_id, broker_id
);

-- Buckets: the clients that share a quota at a broker, their rates added second by second.
CREATE VIEW IF NOT EXISTS headroom.minute_buckets
(
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           String                  COMMENT 'who measured: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'what is measured',
    `broker_id`        Int32                   COMMENT 'the broker that served the requests',
    `row_limit`        Float64                 COMMENT 'quota in force; -1: none',
    `limit_known`      UInt8                   COMMENT '0: no quota was observed yet',
    `matched_entity`   String                  COMMENT 'the quota entity that won',
    `bucket_user`      String                  COMMENT 'metric tag user of the bucket',
    `bucket_client_id` String                  COMMENT 'metric tag client-id of the bucket',
    `elapsed_s`        UInt32                  COMMENT 'seconds of the minute that have passed',
    `rates`            Array(Float64)          COMMENT 'rate of each second',
    `sampled`          Array(UInt8)            COMMENT '1 for each second that has a sample',
    `area`             Float64                 COMMENT 'sum of rate x interval in ms',
    `covered`          UInt8                   COMMENT '1: rows have intervals',
    `members`          Array(Tuple(String, String, Float64, Float64, UInt64, Float64, Int64))
                                               COMMENT 'user, client_id, usage, usage_p95, bytes, throttle_ms, muted_ms'
) AS
SELECT
    c.window_start AS window_start, c.cluster AS cluster, c.source AS source, c.quota_key AS quota_key,
    c.broker_id AS broker_id, c.row_limit AS row_limit, c.limit_known AS limit_known, any(c.entity) AS matched_entity,
    any(c.tag_user) AS bucket_user, any(c.tag_client_id) AS bucket_client_id, any(c.elapsed_s) AS elapsed_s,
    sumForEach(c.rates) AS rates, maxForEach(c.sampled) AS sampled, sum(c.area) AS area, max(c.covered) AS covered,
    groupArray((toString(c.user), toString(c.client_id), c.usage, c.usage_p95, c.bytes, c.throttle_ms, c.muted_ms))
        AS members
FROM headroom.minute_clients AS c
GROUP BY window_start, cluster, source, quota_key, broker_id, c.shared_user, c.shared_client_id, row_limit, limit_known;

-- Each client at each broker in each minute of the last six hours.
CREATE VIEW IF NOT EXISTS headroom.usage_by_minute
(
    `window_start`     DateTime('UTC')         COMMENT 'beginning of the minute',
    `cluster`          LowCardinality(String)  COMMENT 'name of the Kafka cluster',
    `source`           LowCardinality(String)  COMMENT 'who measured: gateway or jmx',
    `quota_key`        LowCardinality(String)  COMMENT 'what is measured',
    `user`             LowCardinality(String)  COMMENT 'user of the connection',
    `client_id`        LowCardinality(String)  COMMENT 'client id of the requests',
    `broker_id`        Int32                   COMMENT 'the broker that served the requests',
    `limit`            Nullable(Float64)       COMMENT 'the quota per broker; NULL when no quota applies or none is known',
    `limit_known`      UInt8                   COMMENT '0: no quota was observed yet',
    `matched_entity`   LowCardinality(String)  COMMENT 'the quota entity that won',
    `bucket_user`      LowCardinality(String)  COMMENT 'metric tag user; clients equal in both tags share the quota at a broker',
    `bucket_client_id` LowCardinality(String)  COMMENT 'metric tag client-id',
    `usage`            Float64                 COMMENT 'mean rate of this client',
    `usage_p95`        Float64                 COMMENT '95th percentile of its rate per second',
    `bytes`            UInt64                  COMMENT 'bytes of this client',
    `group_usage`      Float64                 COMMENT 'mean rate of all clients that share the quota',
    `group_p95`        Float64                 COMMENT '95th percentile of their summed rate per second',
    `utilization`      Nullable(Float64)       COMMENT 'group_usage / limit, not capped; NULL without a limit',
    `utilization_p95`  Nullable(Float64)       COMMENT 'group_p95 / limit',
    `throttle_ms`      Float64                 COMMENT 'longest throttle time announced',
    `muted_ms`         Int64                   COMMENT 'how long the broker muted the client',
    `shared_with`      UInt32                  COMMENT 'other active clients under the same quota at that broker',
    `window_s`         UInt32                  COMMENT 'seconds of the minute that have passed: 60 once it has ended'
) AS
SELECT
    window_start, cluster, source, quota_key, member.1 AS user, member.2 AS client_id, broker_id,
    if(row_limit < 0, NULL, row_limit) AS `limit`, limit_known, matched_entity, bucket_user, bucket_client_id,
    member.3 AS usage, member.4 AS usage_p95, member.5 AS bytes, group_usage, group_p95,
    multiIf(row_limit > 0, group_usage / row_limit, row_limit = 0 AND group_usage > 0, inf, NULL) AS utilization,
    multiIf(row_limit > 0, group_p95 / row_limit, row_limit = 0 AND group_p95 > 0, inf, NULL) AS utilization_p95,
    member.6 AS throttle_ms, member.7 AS muted_ms, toUInt32(length(members) - 1) AS shared_with, elapsed_s AS window_s
FROM
(
    SELECT
        window_start, cluster, source, quota_key, broker_id, row_limit, limit_known, matched_entity, bucket_user,
        bucket_client_id, members, elapsed_s,
        area / 1000 / if(covered, elapsed_s, greatest(arraySum(sampled), 1)) AS group_usage,
        ifNotFinite(arrayReduce('quantileExact(0.95)', if(covered, arraySlice(rates, 1, elapsed_s),
            arrayFilter((rate, seen) -> seen > 0, rates, sampled))), 0) AS group_p95
    FROM headroom.minute_buckets
)
ARRAY JOIN members AS member;
