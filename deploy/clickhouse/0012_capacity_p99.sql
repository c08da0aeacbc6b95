-- The busiest five minutes but 1 % are what a suggested limit goes by.
ALTER TABLE headroom.capacity_report
    ADD COLUMN IF NOT EXISTS `utilization_p99` Float64 AFTER `utilization_p95`,
    ADD COLUMN IF NOT EXISTS `broker_id` Int32 COMMENT 'the busiest broker' AFTER `client_id`;
