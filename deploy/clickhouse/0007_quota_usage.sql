-- Usage of several gateways, over intervals, with the limit that was in force: what DECISIONS 19 defines as usage.

ALTER TABLE headroom.quota_usage
    ADD COLUMN IF NOT EXISTS `gateway_id` LowCardinality(String)
        COMMENT 'the gateway that measured it (--gateway-id); empty for other sources',
    MODIFY ORDER BY (cluster, quota_key, toStartOfHour(ts), user, client_id, ip, broker_id, source, ts, gateway_id);

ALTER TABLE headroom.quota_usage
    ADD COLUMN IF NOT EXISTS `interval_ms` UInt32 DEFAULT 0
        COMMENT 'length of the interval that ends at ts; 0: a sample at ts, its interval is unknown',
    ADD COLUMN IF NOT EXISTS `limit` Nullable(Float64)
        COMMENT 'quota in force at ts; NULL: no quota applies, or it is not known (limit_known)',
    ADD COLUMN IF NOT EXISTS `limit_known` UInt8 DEFAULT isNotNull(`limit`)
        COMMENT '1: limit is what the cluster had configured at ts',
    ADD COLUMN IF NOT EXISTS `matched_entity` LowCardinality(String) DEFAULT ''
        COMMENT 'the quota entity that won, empty when none did',
    ADD COLUMN IF NOT EXISTS `bucket_user` LowCardinality(String) DEFAULT user
        COMMENT 'metric tag user under which the broker meters; rows equal in both tags share one quota at a broker',
    ADD COLUMN IF NOT EXISTS `bucket_client_id` LowCardinality(String) DEFAULT client_id
        COMMENT 'metric tag client-id under which the broker meters';
