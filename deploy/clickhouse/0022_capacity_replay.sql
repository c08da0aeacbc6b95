-- The what-if behind a suggested limit: the clients of the bucket that would have been throttled, most seconds first.
ALTER TABLE headroom.capacity_report
    ADD COLUMN IF NOT EXISTS `replay_users` Array(String)
        COMMENT 'users of the clients that would have been throttled, at most twenty' AFTER `throttled_after`,
    ADD COLUMN IF NOT EXISTS `replay_client_ids` Array(String) COMMENT 'their client ids' AFTER `replay_users`,
    ADD COLUMN IF NOT EXISTS `replay_before_s` Array(Float64)
        COMMENT 'seconds over the limits that were in force, at the broker with most' AFTER `replay_client_ids`,
    ADD COLUMN IF NOT EXISTS `replay_after_s` Array(Float64)
        COMMENT 'the same with the suggested limit' AFTER `replay_before_s`;
