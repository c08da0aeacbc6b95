"""Panels, variables and queries as the dashboards use them, by grafana-foundation-sdk."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption

CLICKHOUSE = "grafana-clickhouse-datasource"
_TIME_SERIES, _TABLE = 0, 1
WIDE, HALF, _THIRD = 24, 12, 8
FILTER = "cluster IN (${cluster:singlequote})"


class Sql(Dataquery):
    """A query of the ClickHouse plug-in; a builder and its result in one."""

    def __init__(self, sql: str, as_table: bool) -> None:
        self._sql = _one_line(sql)
        self._format = _TABLE if as_table else _TIME_SERIES

    def build(self) -> Sql:
        return self

    def to_json(self) -> dict[str, object]:
        source = {"type": CLICKHOUSE, "uid": "${clickhouse}"}
        return {"refId": "A", "editorType": "sql", "rawSql": self._sql, "format": self._format, "datasource": source}


def _clickhouse(panel: Any, title: str, what: str, span: int, sql: str, *, as_table: bool) -> Any:
    source = DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")
    return panel.title(title).description(what).datasource(source).span(span).height(9).with_target(Sql(sql, as_table))


def rows(title: str, what: str, sql: str, span: int = WIDE) -> Any:
    """A table."""
    return _clickhouse(table.Panel(), title, what, span, sql, as_table=True)


def lines(title: str, what: str, sql: str, unit: str, span: int = HALF) -> Any:
    """Values over time; text columns name the lines."""
    return _clickhouse(timeseries.Panel(), title, what, span, sql, as_table=False).unit(unit)


def graph(title: str, what: str, expr: str, unit: str, legend: str, span: int = HALF) -> Any:
    """PromQL over time."""
    source = DataSourceRef(type_val="prometheus", uid="${prometheus}")
    query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id("A").datasource(source)
    panel = timeseries.Panel().title(title).description(what).datasource(source)
    return panel.span(span).height(9).unit(unit).with_target(query)


def number(title: str, what: str, expr: str, unit: str) -> Any:
    """The newest value of PromQL."""
    source = DataSourceRef(type_val="prometheus", uid="${prometheus}")
    query = prometheus.Dataquery().expr(expr).instant().ref_id("A").datasource(source)
    panel = stat.Panel().title(title).description(what).datasource(source)
    return panel.span(_THIRD).height(5).unit(unit).with_target(query)


def new_dashboard(uid: str, title: str) -> dashboard.Dashboard:
    made = dashboard.Dashboard(title).uid(uid).tags(["headroom", "kafka"]).refresh("30s").time("now-1h", "now")
    made = made.readonly().timezone("browser")
    database = dashboard.TextBoxVariable("database").default_value("headroom")
    made = made.with_variable(database.current(VariableOption(text="headroom", value="headroom")))
    return made.with_variable(dashboard.DatasourceVariable("clickhouse").type(CLICKHOUSE)).with_variable(
        dashboard.DatasourceVariable("prometheus").type("prometheus")
    )


def _one_line(sql: str) -> str:
    """With the variable that names the database."""
    return " ".join(sql.split()).replace("FROM headroom.", "FROM ${database}.")


def variable(name: str, sql: str, *, multi: bool) -> Any:
    source = DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")
    made = dashboard.QueryVariable(name).datasource(source).query(_one_line(sql)).refresh(2)
    return made.multi(multi).include_all(multi)


def cluster_variable() -> Any:
    return variable("cluster", "SELECT DISTINCT cluster FROM headroom.headroom_now ORDER BY cluster", multi=True)


def with_panels(made: dashboard.Dashboard, panels: list[Any]) -> Any:
    for number_, panel in enumerate(panels, start=1):
        made = made.with_panel(panel.id(number_))
    return made.build()
