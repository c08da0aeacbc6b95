-- The longest throttle time of an interval understates the time in which a client was muted several times a second.
ALTER TABLE headroom.quota_usage
    ADD COLUMN IF NOT EXISTS `muted_ms` UInt32 DEFAULT 0
        COMMENT 'time in [ts - interval_ms, ts) in which the broker muted the client: the union of all throttle times; 0 when interval_ms is 0'
        AFTER `interval_ms`;
