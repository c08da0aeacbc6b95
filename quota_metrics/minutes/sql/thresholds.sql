-- The thresholds of levels that were set last.
SELECT * EXCEPT (set_at) FROM level_thresholds ORDER BY set_at DESC LIMIT 1
