"""Panels, variables, queries and links as the dashboards use them, by grafana-foundation-sdk."""

# ruff: noqa: S608 - queries are made of constants

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)

from quota_metrics.amounts import STYLES
from quota_metrics.verdict.thresholds import STEPS, Thresholds

CLICKHOUSE = "grafana-clickhouse-datasource"
_TIME_SERIES, _TABLE = 0, 1
WIDE, HALF, _THIRD = 24, 12, 8
FILTER = "cluster IN (${cluster:singlequote})"
_TAG = "headroom"
# Of a row with the columns cluster, user and client_id.
_NAMES = {name: f"${{__data.fields.{name}:percentencode}}" for name in ("cluster", "user", "client_id")}
_PAGE = "/clients/detail?" + "&".join(f"{name}={value}" for name, value in _NAMES.items())
_DASHBOARD = (
    f"/d/headroom-client?var-cluster={_NAMES['cluster']}&var-client={_NAMES['client_id']}"
    "&${headroom:queryparam}&${database:queryparam}&${clickhouse:queryparam}&${__url_time_range}"
)


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


def client_rows(title: str, what: str, sql: str, span: int = WIDE) -> Any:
    """A table of clients: each row leads to the client's page and dashboard, its utilisation has the level's colour.
    The query has the columns cluster, user and client_id."""
    links = [_page("Headroom's page of the client", _PAGE), _link("Dashboard of the client", _DASHBOARD)]
    coloured = [
        DynamicConfigValue("unit", "percentunit"),
        DynamicConfigValue("thresholds", level_thresholds().build()),
        DynamicConfigValue("custom.cellOptions", {"type": "color-background", "mode": "basic"}),
    ]
    return rows(title, what, sql, span).data_links(links).override_by_name("utilization", coloured)


def linked_rows(title: str, what: str, sql: str, link: tuple[str, str], span: int = WIDE) -> Any:
    """A table whose rows lead to a page of Headroom: (title, path with columns of the row)."""
    return rows(title, what, sql, span).data_links([_page(*link)])


def _page(title: str, path: str) -> Any:
    return _link(title, "${headroom:raw}" + path)


def _link(title: str, url: str) -> Any:
    return dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url).target_blank(True)


def level_thresholds() -> dashboard.ThresholdsConfig:
    """The shares of a limit at which levels begin unless the setting `levels` says otherwise, in their colours."""
    steps = zip(STEPS, Thresholds().steps, strict=True)
    coloured = [Threshold(share, STYLES[level].colour) for level, share in steps]
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(None, STYLES["ok"].colour), *coloured])
    )


def shares(title: str, what: str, sql: str, span: int = HALF) -> Any:
    """Shares of a limit over time, with a line where each level begins."""
    drawn = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return lines(title, what, sql, "percentunit", span).thresholds(level_thresholds()).thresholds_style(drawn)


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
    made = dashboard.Dashboard(title).uid(uid).tags([_TAG, "kafka"]).refresh("30s").time("now-1h", "now")
    others = dashboard.DashboardLink("Headroom").type(DashboardLinkType.DASHBOARDS).tags([_TAG])
    made = made.readonly().timezone("browser").link(others.include_vars(True).keep_time(True))
    for name, value in {"database": "headroom", "headroom": "http://127.0.0.1:9644"}.items():
        typed = dashboard.TextBoxVariable(name).default_value(value)
        made = made.with_variable(typed.current(VariableOption(text=value, value=value)))
    return made.with_variable(dashboard.DatasourceVariable("clickhouse").type(CLICKHOUSE)).with_variable(
        dashboard.DatasourceVariable("prometheus").type("prometheus")
    )


def _one_line(sql: str) -> str:
    """With the variable that names the database."""
    return " ".join(sql.split()).replace("FROM headroom.", "FROM ${database}.")


def variable(name: str, sql: str, *, multi: bool) -> Any:
    source = DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")
    made = (
        dashboard.QueryVariable(name)
        .datasource(source)
        .query(_one_line(sql))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    return made.multi(multi).include_all(multi)


def quota_changes(of: str) -> Any:
    """Marks where quotas changed. `of`: a condition on quota_changes."""
    sql = f"""SELECT changed_at AS time, concat(entity, ' ', quota_key) AS title,
        concat(ifNull(toString(before), 'none'), ' to ', ifNull(toString(after), 'none')) AS text, cluster AS tags
        FROM headroom.quota_changes WHERE {of} AND $__timeFilter(changed_at) ORDER BY time DESC LIMIT 100"""
    made = dashboard.AnnotationQuery().name("Quota changes").icon_color("blue").enable(True)
    return made.datasource(DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")).target(Sql(sql, as_table=True))


def cluster_variable() -> Any:
    return variable("cluster", "SELECT DISTINCT cluster FROM headroom.headroom_now ORDER BY cluster", multi=True)


def with_panels(made: dashboard.Dashboard, panels: list[Any]) -> Any:
    for number_, panel in enumerate(panels, start=1):
        made = made.with_panel(panel.id(number_))
    return made.build()
