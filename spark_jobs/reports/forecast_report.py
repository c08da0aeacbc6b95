"""The reports of throttle-forecast and backtest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_jobs.reports.report import Row
from spark_jobs.reports.rows_report import rows_report

_MOMENT = pa.timestamp("ms", "UTC")
_TYPES: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "source": pa.string(),
    "quota_key": pa.string(),
    "user": pa.string(),  # the metric tags of the bucket
    "client_id": pa.string(),
    "broker_id": pa.int32(),
    "made_at": _MOMENT,
    "limit": pa.float64(),
    "utilization": pa.float64(),  # p95 of the newest five minutes
    "hits_limit_at": _MOMENT,
    "earliest": _MOMENT,
    "latest": _MOMENT,
    "confidence": pa.float64(),
    "p10": pa.list_(pa.float64()),  # utilisation per five minutes, starting at made_at
    "p50": pa.list_(pa.float64()),
    "p90": pa.list_(pa.float64()),
    "reason": pa.string(),
}
COLUMNS = pa.schema(_TYPES)
STORED = pa.schema({**_TYPES, "run_id": pa.string()})


def _plots(rows: Sequence[Row]) -> Mapping[str, str]:
    from spark_jobs.reports.plots import forecast_plots  # takes seconds to import

    return forecast_plots(rows)


REPORT = rows_report(
    "When quotas are reached",
    COLUMNS,
    ("cluster", "quota_key", "user", "client_id", "broker_id", "utilization", "hits_limit_at", "confidence", "reason"),
    _plots,
)

_FIGURES = ("precision", "recall", "brier")
_SCORES = [f"{figure}_{lead}m" for figure in _FIGURES for lead in (5, 30)]
_BACKTEST_TYPES: dict[str, pa.DataType] = {
    "method": pa.string(),
    "forecasts": pa.int64(),
    **dict.fromkeys((*_SCORES, "lead_error_min", "pinball", "coverage"), pa.float64()),
}
BACKTEST_COLUMNS = pa.schema(_BACKTEST_TYPES)
BACKTEST = rows_report("How good the forecasts were", BACKTEST_COLUMNS, BACKTEST_COLUMNS.names)
