"""Statements that fill headroom_minutes (deploy/clickhouse/0013_headroom_minutes.sql): what the views of now read."""

from __future__ import annotations

from typing import Final

# The rows of one minute; more of them than at the last computation means that it is to be computed again.
COUNT_ROWS: Final = """
SELECT count() AS rows FROM headroom.quota_usage_recent WHERE minute = fromUnixTimestamp({window_s:UInt32})
"""

# Writes the minute as a whole, beside older computations of it: the newest computed_at counts.
COMPUTE_MINUTE: Final = """
INSERT INTO headroom.headroom_minutes
    (window_start, computed_at, is_worst, cluster, source, quota_key, user, client_id, broker_id, `limit`, usage,
     utilization, throttle_ms, level, reason, limit_known, matched_entity, bucket_user, bucket_client_id, usage_p95,
     bytes, group_usage, group_p95, utilization_p95, muted_ms, shared_with, window_s, software_name, software_version,
     instances, pushes, last_seen)
SELECT
    h.window_start, now64(3, 'UTC'), h.is_worst, h.cluster, h.source, h.quota_key, h.user, h.client_id, h.broker_id,
    h.`limit`, h.usage, h.utilization, h.throttle_ms, h.level, h.reason, h.limit_known, h.matched_entity, h.bucket_user,
    h.bucket_client_id, h.usage_p95, h.bytes, h.group_usage, h.group_p95, h.utilization_p95, h.muted_ms, h.shared_with,
    h.window_s, s.software_name, s.software_version, s.instances, s.pushes, s.last_seen
FROM headroom.minute_levels AS h
LEFT ANY JOIN headroom.client_instances_now AS s
    ON h.cluster = s.cluster AND h.user = s.user AND h.client_id = s.client_id
WHERE h.window_start = fromUnixTimestamp({window_s:UInt32})
"""
