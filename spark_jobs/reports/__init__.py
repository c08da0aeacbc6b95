"""Reports: rows as a terminal table, a self-contained HTML page, JSON and Parquet.

`report` is the common type; `headroom_report`, `suggestions` and `tables` define columns, table and page of each job's.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jobs.reports import headroom_report, suggestions, tables
from spark_jobs.reports.report import Report

REPORTS: Mapping[str, Report] = {
    "quota-headroom": headroom_report.REPORT,
    "throttle-forecast": tables.FORECAST,
    "backtest": tables.BACKTEST,
    "client-inventory": tables.INVENTORY,
    "capacity-report": tables.CAPACITY,
    "quota-suggest": suggestions.REPORT,
    "team-report": tables.TEAMS,
}
