"""Points to insert into ClickHouse."""

import uuid
from typing import Any

import pyarrow as pa

NOW_MS = 4_102_444_800_000  # the year 2100: the tables delete rows older than two weeks
TIME = pa.timestamp("ms", "UTC")
INSTANCE = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


def points(cluster: str, count: int, **replaced: Any) -> pa.Table:
    """`count` points, one millisecond apart, of one series."""
    columns: dict[str, Any] = {
        "cluster": pa.array([cluster] * count).dictionary_encode(),
        "metric": pa.array(["m"] * count).dictionary_encode(),
        "ts": pa.array(range(NOW_MS, NOW_MS + count), TIME),
        "principal": ["ANONYMOUS"] * count,
        "client_id": ["app"] * count,
        "client_instance_id": pa.array([INSTANCE.bytes] * count, pa.binary(16)).dictionary_encode(),
        "series_id": pa.array([2**64 - 1] * count, pa.uint64()),
        "value": [float(n) for n in range(count)],
        "int_value": pa.array([None] * count, pa.int64()),
        "flags": pa.array([0] * count, pa.uint8()),
        "interval_ms": pa.array([5000] * count, pa.uint32()),
        "received_at": pa.array([NOW_MS] * count, TIME),
    }
    return pa.table({**columns, **replaced})
