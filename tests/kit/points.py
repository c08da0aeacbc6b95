"""Points, and client instances with the bytes that they report, to insert into ClickHouse."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from exporters.clickhouse.store import Store
from quota_metrics.verdict.client_signals import metrics_of

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


REPORT_MS, REPORTS = 60_000, 6


class Instance(NamedTuple):
    """Seen from `first_s` until `last_s`, seconds after a moment; reports `sent` bytes in each minute after it.
    `interval_s`: of its pushes; 0 for one that did not push twice."""

    first_s: float
    last_s: float = 900.0
    version: str = "3.9.1"
    address: str = "10.0.0.1"
    ended: bool = False
    sent: float = 0.0
    interval_s: float = 0.0

    @property
    def pushes(self) -> int:
        return 1 + round((self.last_s - self.first_s) / self.interval_s) if self.interval_s else 1


def store_fleet(
    store: Store, cluster: str, user: str, client_id: str, fleet: Sequence[Instance], moment_ms: int
) -> None:
    """Stores the instances of a client."""
    name = f"{cluster}/{user}/{client_id}"
    keys = [uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{number}") for number in range(len(fleet))]
    rows = ", ".join(
        f"('{cluster}', '{key}', '{client_id}', '{user}', 'java', '{one.version}', '{one.address}',"
        f" fromUnixTimestamp64Milli({moment_ms + round(one.first_s * 1000)}),"
        f" fromUnixTimestamp64Milli({moment_ms + round(one.last_s * 1000)}), {int(one.ended)}, {one.pushes})"
        for key, one in zip(keys, fleet, strict=True)
    )
    store.command(
        "INSERT INTO client_instances (cluster, client_instance_id, client_id, principal, software_name,"
        f" software_version, source_address, first_seen, last_seen, terminated, pushes) VALUES {rows}",
        {},
    )
    reports = [
        (key, moment_ms + minute * REPORT_MS + 5000, one.sent)
        for key, one in zip(keys, fleet, strict=True)
        if one.sent
        for minute in range(REPORTS)
    ]
    if not reports:
        return
    reporters, times, sent = map(list, zip(*reports, strict=True))
    columns: dict[str, Any] = {
        "metric": pa.array([metrics_of("outgoing_bytes")[0]] * len(reports)),
        "principal": [user] * len(reports),
        "client_id": [client_id] * len(reports),
        "client_instance_id": pa.array([key.bytes for key in reporters], pa.binary(16)),
        "series_id": pa.array(range(len(reports)), pa.uint64()),
        "ts": pa.array(times, TIME),
        "value": sent,
    }
    store.insert("points", points(cluster, len(reports), **columns), token=name)
