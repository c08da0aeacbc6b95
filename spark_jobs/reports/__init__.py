"""Reports: rows as a terminal table, a self-contained HTML page, JSON and Parquet.

`report` is the common type; `headroom_report`, `suggestions` and `tables` define columns, table and page of each job's.

headroom_report.py  the report of quota-headroom: terminal table, JSON, HTML page, Parquet
plots.py            plots of the HTML reports: Vega-Lite charts by altair, drawn to SVG in this process
report.py           a report: renders the rows of a job as table, JSON, HTML page or Parquet; and the report that is a
                    table of rows
suggestions.py      the report of quota-suggest: a table of rows, and the file of `headroom quotas plan | apply`
tables.py           the reports of all jobs but quota-headroom: tables of rows
"""

from collections.abc import Mapping

from spark_jobs.reports import headroom_report, suggestions, tables
from spark_jobs.reports.report import Report

REPORTS: Mapping[str, Report] = {
    "quota-headroom": headroom_report.REPORT,
    "throttle-forecast": tables.FORECAST,
    "backtest": tables.BACKTEST,
    "client-inventory": tables.INVENTORY,
    "quota-suggest": suggestions.REPORT,
    "team-report": tables.TEAMS,
}
