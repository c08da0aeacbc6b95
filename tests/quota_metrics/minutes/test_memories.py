"""What a service remembers after a restart has the types that the verdict declares: compiled, it takes no others."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.memories import restored
from quota_metrics.verdict.window import Base, Onset, PastWindow

MINUTE_MS = 1_795_168_860_000
# A row of past.sql, as ClickHouse's Arrow has it.
ROW: dict[str, Any] = {
    "cluster": "c", "source": "gateway", "quota_key": "producer_byte_rate", "user": "u", "client_id": "app",
    "start_ms": pa.scalar(MINUTE_MS - 60_000, pa.int64()), "broker_id": pa.scalar(1, pa.int32()),
    "is_worst": pa.scalar(1, pa.uint8()), "value": 0.9, "muted_ms": pa.scalar(5, pa.int64()),
    "is_onset": pa.scalar(1, pa.uint8()), "cause": "", "own_cause": "", "limit": 100.0,
    "limit_known": pa.scalar(1, pa.uint8()), "usage": 90.0, "group_usage": 90.0, "bucket_user": "u",
    "bucket_client_id": "app", "culprit_user": "", "culprit_client_id": "", "culprit_share": None,
}  # fmt: skip


class OnePastMinute:
    def table(self, _sql: str, _parameters: object) -> pa.Table:
        return pa.table(
            {name: pa.array([value]) if value is not None else pa.nulls(1, pa.float64()) for name, value in ROW.items()}
        )


def types(values: tuple[Any, ...]) -> list[type]:
    return [type(value) for value in values]


def test_memory_of_a_stored_minute() -> None:
    store = cast(ClickHouse, OnePastMinute())
    (memory,) = restored(store, MINUTE_MS).memories.values()
    assert memory.past == (PastWindow(MINUTE_MS - 60_000, 0.9, 5.0, 90.0, 90.0),)
    assert types(memory.past[0]) == [int, float, float, float, float]
    assert memory.bases == {1: Base(100.0, True, 90.0, 90.0, "u", "app", "", "", None)}
    assert types(memory.bases[1]) == [float, bool, float, float, str, str, str, str, type(None)]
    assert memory.onset == Onset(MINUTE_MS - 60_000, "", "", 0.0)
