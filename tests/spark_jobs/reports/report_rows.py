"""Rows of the quota-headroom report, ordinary and hostile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_jobs.reports import headroom_report as report

WINDOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def row(**changed: Any) -> dict[str, Any]:
    """Columns that are not named here are empty."""
    columns = {
        **{column.name: "" if pa.types.is_string(column.type) else None for column in report.COLUMNS},
        "cluster": "c",
        "quota_key": "producer_byte_rate",
        "user": "alice",
        "client_id": "app",
        "broker_id": 1,
        "limit": 200_000.0,
        "usage": 170_000.0,
        "utilization": 0.85,
        "utilization_p95": 0.9,
        "throttle_ms": 0.0,
        "level": "warn",
        "reason": "at 85.0 % of producer_byte_rate",
        "impact": "none",
        "software_name": "apache-kafka-java",
        "software_version": "4.3.1",
        "instances": 1,
        "matched_entity": "client-id=app",
        "headroom": 30_000.0,
        "group_usage": 170_000.0,
        "shared_with": 0,
        "team": "unowned",
        "instant_level": "warn",
        "source": "gateway",
        "complete": 1,
        "trend_per_min": 1_500.0,
        "burst_credit": 300_000.0,
        "window_start": WINDOW,
        "window_s": 60,
        "bytes": 5_100_000,
        "range_throttle_ms": 0.0,
        "range_throttled_s": 0.0,
        "history_at": [WINDOW - timedelta(minutes=1), WINDOW],
        "history": [0.5, 0.9],
    }
    return columns | changed


NO_LIMIT = {"limit": None, "utilization": None, "headroom": None, "trend_per_min": None, "burst_credit": None}
FREE = row(client_id="free", **NO_LIMIT, level="ok", matched_entity="")
EARLIER = {"range_throttle_ms": 800.0, "range_throttled_s": 12.0, "last_throttled": WINDOW - timedelta(minutes=5)}
HOSTILE = row(client_id="<script>alert(1)</script>\x1b[2J\n[bold]", reason="\x1b]0;title\x07 & <b>")
