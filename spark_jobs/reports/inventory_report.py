"""The report of client-inventory."""

from __future__ import annotations

import pyarrow as pa

from spark_jobs.reports.rows_report import rows_report

_MOMENT = pa.timestamp("us", "UTC")
_TYPES: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "user": pa.string(),
    "client_id": pa.string(),
    "status": pa.string(),  # known issue, silent, no telemetry, gone, reports
    "instances": pa.int32(),
    "instances_open": pa.int32(),  # instances that have not terminated
    "software": pa.string(),
    "known_issue": pa.string(),
    "last_push": _MOMENT,
    "last_traffic": _MOMENT,
    "pushes": pa.int64(),
    "points": pa.int64(),
    "share_of_points": pa.float64(),  # of the cluster
    "series": pa.int64(),
    "costliest_metric": pa.string(),
}
COLUMNS = pa.schema(_TYPES)
REPORT = rows_report("Clients", COLUMNS, COLUMNS.names)
