"""Reports: rows as a terminal table, a self-contained HTML page, JSON and Parquet.

`report` is the common type; one file per job defines its columns, table and page.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jobs.reports import capacity_table, forecast_report, headroom_report, inventory_report
from spark_jobs.reports.report import Report

REPORTS: Mapping[str, Report] = {
    "quota-headroom": headroom_report.REPORT,
    "throttle-forecast": forecast_report.REPORT,
    "backtest": forecast_report.BACKTEST,
    "client-inventory": inventory_report.REPORT,
    "capacity-report": capacity_table.REPORT,
}
