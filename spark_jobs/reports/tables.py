"""The reports of all jobs but quota-headroom: tables of rows."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_jobs.reports.report import Row, rows_report

_MOMENT = pa.timestamp("ms", "UTC")
_FORECAST: dict[str, pa.DataType] = {
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
    "within_24h": pa.float64(),  # probabilities
    "within_7d": pa.float64(),
    "next_hit_at": _MOMENT,  # within seven days, to the hour
    "reason": pa.string(),
}
FORECAST_COLUMNS = pa.schema(_FORECAST)


def _plots(rows: Sequence[Row]) -> Mapping[str, str]:
    from spark_jobs.reports.plots import forecast_plots  # takes seconds to import

    return forecast_plots(rows)


FORECAST = rows_report(
    FORECAST_COLUMNS,
    "When quotas are reached",
    (
        *("cluster", "quota_key", "user", "client_id", "broker_id", "utilization", "hits_limit_at", "confidence"),
        *("within_24h", "reason"),
    ),
    empty="No bucket has a forecast: there is no usage with a limit in the range, or less than four hours of it.",
    leave=("within_24h", "cluster", "broker_id", "confidence", "user", "quota_key"),
    plots=_plots,
)

_FIGURES = ("precision", "recall", "brier")
_SCORES = [f"{figure}_{lead}" for figure in _FIGURES for lead in ("5m", "30m", "1h", "3h", "24h", "7d")]
_BACKTEST: dict[str, pa.DataType] = {
    "method": pa.string(),
    "forecasts": pa.int64(),
    **dict.fromkeys((*_SCORES, "lead_error_min", "pinball", "coverage"), pa.float64()),
}
BACKTEST = rows_report(
    pa.schema(_BACKTEST),
    "How good the forecasts were",
    list(_BACKTEST),
    empty="Nothing to score: no bucket has usage with a limit for long enough.",
    leave=(
        *("pinball", "coverage", "lead_error_min"),
        *(f"{figure}_{lead}" for lead in ("30m", "5m", "7d", "24h") for figure in _FIGURES),
        *("brier_3h", "brier_1h"),
    ),
)

_MICROSECOND = pa.timestamp("us", "UTC")
_INVENTORY: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "user": pa.string(),
    "client_id": pa.string(),
    "status": pa.string(),  # known issue, silent, no telemetry, gone, reports
    "instances": pa.int32(),
    "instances_open": pa.int32(),  # instances that have not terminated
    "software": pa.string(),
    "known_issue": pa.string(),
    "last_push": _MICROSECOND,
    "last_traffic": _MICROSECOND,
    "pushes": pa.int64(),
    "points": pa.int64(),
    "share_of_points": pa.float64(),  # of the cluster
    "series": pa.int64(),
    "costliest_metric": pa.string(),
}
INVENTORY = rows_report(
    pa.schema(_INVENTORY),
    "Clients",
    list(_INVENTORY),
    empty="No client sent telemetry or traffic in the range.",
    leave=(
        *("cluster", "series", "costliest_metric", "instances_open", "share_of_points", "pushes", "last_traffic"),
        *("user", "points", "software"),
    ),
)

_TEAM: dict[str, pa.DataType] = {
    "team": pa.string(),
    "contact": pa.string(),
    "page": pa.string(),
    "clients": pa.int64(),
    "bytes_in": pa.int64(),
    "bytes_out": pa.int64(),
    "requests": pa.int64(),  # Produce and Fetch
    "throttled_requests": pa.int64(),
    "throttled_s": pa.float64(),  # added up over clients and brokers
    "share": pa.float64(),  # of all bytes
    "capacity_share": pa.float64(),  # of what the cluster can carry, by the direction that takes the larger share
    "peak_bytes_per_s": pa.float64(),  # mean of the busiest hour
    "growth_per_week": pa.float64(),
    "cost": pa.float64(),
}
TEAMS = rows_report(
    pa.schema(_TEAM),
    "Teams",
    list(_TEAM),
    empty="No usage was recorded in the range.",
    leave=("page", "contact", "throttled_requests", "requests", "growth_per_week", "clients", "peak_bytes_per_s"),
)
