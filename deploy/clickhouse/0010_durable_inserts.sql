-- An insert into these tables is acknowledged when its rows survive a power loss: the worker frees the spool's copy then.
-- Merges need no such setting: ClickHouse keeps the parts that it merged for old_parts_lifetime (8 minutes), far
-- longer than the kernel keeps pages that are not written back.

ALTER TABLE headroom.points MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.series MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.client_histograms MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.pushes MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.client_instances MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.quota_limits MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE headroom.quota_usage MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

-- Merges cost more than inserts, and rows of points have a long key: fewer, larger merges (a row is merged half as often),
-- and columns that are no key are merged one by one.
ALTER TABLE headroom.points MODIFY SETTING merge_selector_base = 10, vertical_merge_algorithm_min_columns_to_activate = 1;

-- What the worker writes and reads back when it starts: whether this store keeps rows is seen before the first batch.
CREATE TABLE IF NOT EXISTS headroom.write_checks
(
    `checked_at` DateTime64(3, 'UTC') DEFAULT now64(3),
    `token`      String
)
ENGINE = MergeTree
ORDER BY checked_at
TTL toDateTime(checked_at) + INTERVAL 1 DAY DELETE
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
