"""Plain SQL for the windows of the job bench's rows, by another hand: nothing of it comes from quota_metrics.

It takes what these rows are for granted, which the product cannot: one gateway, a row for each second, one
limit that all rows know, and no duplicates.
"""

from __future__ import annotations

from typing import Final

_ROWS = """
FROM headroom.quota_usage
WHERE cluster = {cluster:String} AND quota_key = {quota_key:String} AND source = 'gateway'
  AND ts >= fromUnixTimestamp64Milli({from_ms:Int64}) AND ts < fromUnixTimestamp64Milli({to_ms:Int64})"""
_SECONDS = "least(60, intDiv({to_ms:Int64}, 1000) - minute)"

# Buckets of one client have its figures; only of shared ones the rates are added up second by second.
YARDSTICK: Final = f"""
WITH clients AS (
    SELECT intDiv(toUnixTimestamp(ts), 60) * 60 AS minute, user, client_id, broker_id, count() AS samples,
           max(throttle_ms) AS throttle_ms, sum(muted_ms) AS muted_ms, sum(bytes) AS bytes, any(`limit`) AS quota,
           any(bucket_user) AS bucket_user, any(bucket_client_id) AS bucket_client_id,
           sum(rate) / {_SECONDS} AS usage, quantileExact(0.95)(rate) AS usage_p95, max(rate) AS usage_max
    {_ROWS}
    GROUP BY minute, user, client_id, broker_id
),
shared AS (
    SELECT minute, bucket_user, bucket_client_id, broker_id, count() AS members
    FROM clients
    GROUP BY minute, bucket_user, bucket_client_id, broker_id
    HAVING members > 1
),
together AS (
    SELECT minute, bucket_user, bucket_client_id, broker_id, sum(rate) / {_SECONDS} AS group_usage,
           quantileExact(0.95)(rate) AS group_p95
    FROM (
        SELECT intDiv(toUnixTimestamp(ts), 60) * 60 AS minute, toUnixTimestamp(ts) AS second, bucket_user,
               bucket_client_id, broker_id, sum(rate) AS rate
        {_ROWS} AND (bucket_user, bucket_client_id) IN (SELECT bucket_user, bucket_client_id FROM shared)
        GROUP BY minute, second, bucket_user, bucket_client_id, broker_id
    )
    GROUP BY minute, bucket_user, bucket_client_id, broker_id
)
SELECT c.minute AS minute, c.user AS user, c.client_id AS client_id, c.broker_id AS broker_id, samples, throttle_ms,
       muted_ms, bytes, quota, usage, usage_p95, usage_max,
       if(t.minute = 0, usage, t.group_usage) AS group_usage, if(t.minute = 0, usage_p95, t.group_p95) AS group_p95
FROM clients AS c
LEFT JOIN together AS t USING (minute, bucket_user, bucket_client_id, broker_id)"""

# Fields of a Window, and the columns that they have to equal.
NUMBERS: Final = {
    "samples": "samples", "throttle_ms": "throttle_ms", "muted_ms": "muted_ms", "bytes": "bytes", "limit": "quota",
    "usage": "usage", "usage_p95": "usage_p95", "usage_max": "usage_max", "group_usage": "group_usage",
    "group_p95": "group_p95",
}  # fmt: skip
