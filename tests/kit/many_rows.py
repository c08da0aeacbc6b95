"""Samples of many clients that ClickHouse makes itself: one a second of each, one quota for each."""

from __future__ import annotations

from typing import Final

# Received long ago: an hour with rows from just before its computation is computed again by the next job.
FILL: Final = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, muted_ms, limit, matched_entity, bucket_user, bucket_client_id,
    received_at)
SELECT {cluster:String}, 'producer_byte_rate',
    fromUnixTimestamp64Milli(toInt64({start:Int64} + intDiv(number, {clients:UInt32}) * 1000)) AS ts,
    concat('user-', toString(number % 50)), concat('client-', toString(number % {clients:UInt32})), '',
    1 + number % {clients:UInt32} % 3, 1000, 1000 * (1 + number % 7) + intHash32(number) % 500,
    if(intHash32(number) % 2000 = 0, 700, 0), 0, 'gateway', 'g', 1000,
    if(intHash32(number) % 2000 = 0, 700, 0), 10000, 'user=<default>, client-id=<default>',
    concat('user-', toString(number % 50)),
    concat('client-', toString(number % {clients:UInt32})), ts
FROM numbers({first:UInt64}, {rows:UInt64})"""
