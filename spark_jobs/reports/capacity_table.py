"""The report of capacity-report."""

from __future__ import annotations

import pyarrow as pa

from spark_jobs.reports.rows_report import rows_report

_MOMENT = pa.timestamp("ms", "UTC")
_SHARES = ("utilization_mean", "utilization_p95", "utilization_p99", "utilization_peak", "growth_per_week")
_TYPES: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "source": pa.string(),
    "quota_key": pa.string(),
    "user": pa.string(),  # the metric tags of the bucket
    "client_id": pa.string(),
    "broker_id": pa.int32(),  # the busiest one
    "made_at": _MOMENT,
    "from_time": _MOMENT,
    "to_time": _MOMENT,
    "matched_entity": pa.string(),
    "limit": pa.float64(),
    **dict.fromkeys((*_SHARES, "throttled_share"), pa.float64()),
    "verdict": pa.string(),
    "suggested_limit": pa.float64(),
    "throttled_before": pa.float64(),
    "throttled_after": pa.float64(),
    # what-if: who would have been throttled, for how many seconds under the limits in force and the suggested one
    "replay_users": pa.list_(pa.string()),
    "replay_client_ids": pa.list_(pa.string()),
    "replay_before_s": pa.list_(pa.float64()),
    "replay_after_s": pa.list_(pa.float64()),
    "command": pa.string(),
}
COLUMNS = pa.schema(_TYPES)
STORED = pa.schema({**_TYPES, "run_id": pa.string()})
REPORT = rows_report(
    "Capacity of quotas",
    COLUMNS,
    (
        *("cluster", "quota_key", "user", "client_id", "broker_id", "limit", "utilization_mean", "utilization_p99"),
        *("growth_per_week", "throttled_share", "verdict", "suggested_limit"),
        *("replay_client_ids", "replay_before_s", "replay_after_s", "command"),
    ),
)
