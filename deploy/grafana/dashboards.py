"""Writes the dashboards beside this file: `python -m deploy.grafana.dashboards`. Classic JSON for Grafana 11.6.

ClickHouse panels want the plug-in grafana-clickhouse-datasource over HTTP or the native protocol, as a reader.
"""


# ruff: noqa: S608 - queries are made of constants

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.dashboard import DataSourceRef

HERE = Path(__file__).parent
CLICKHOUSE = "grafana-clickhouse-datasource"
_TIME_SERIES, _TABLE = 0, 1
_WIDE, _HALF, _THIRD = 24, 12, 8
_FILTER = "cluster IN (${cluster:singlequote})"


class Sql(Dataquery):
    """A query of the ClickHouse plug-in; a builder and its result in one."""

    def __init__(self, sql: str, as_table: bool) -> None:
        self._sql = " ".join(sql.split())
        self._format = _TABLE if as_table else _TIME_SERIES

    def build(self) -> Sql:
        return self

    def to_json(self) -> dict[str, object]:
        source = {"type": CLICKHOUSE, "uid": "${clickhouse}"}
        return {"refId": "A", "editorType": "sql", "rawSql": self._sql, "format": self._format, "datasource": source}


def _clickhouse(panel: Any, title: str, what: str, span: int, sql: str, *, as_table: bool) -> Any:
    source = DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")
    return panel.title(title).description(what).datasource(source).span(span).height(9).with_target(Sql(sql, as_table))


def rows(title: str, what: str, sql: str, span: int = _WIDE) -> Any:
    """A table."""
    return _clickhouse(table.Panel(), title, what, span, sql, as_table=True)


def lines(title: str, what: str, sql: str, unit: str, span: int = _HALF) -> Any:
    """Values over time; text columns name the lines."""
    return _clickhouse(timeseries.Panel(), title, what, span, sql, as_table=False).unit(unit)


def graph(title: str, what: str, expr: str, unit: str, legend: str, span: int = _HALF) -> Any:
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


def _new(uid: str, title: str) -> dashboard.Dashboard:
    made = dashboard.Dashboard(title).uid(uid).tags(["headroom", "kafka"]).refresh("30s").time("now-1h", "now")
    made = made.readonly().timezone("browser")
    return made.with_variable(dashboard.DatasourceVariable("clickhouse").type(CLICKHOUSE)).with_variable(
        dashboard.DatasourceVariable("prometheus").type("prometheus")
    )


def _variable(name: str, sql: str, *, multi: bool) -> Any:
    source = DataSourceRef(type_val=CLICKHOUSE, uid="${clickhouse}")
    made = dashboard.QueryVariable(name).datasource(source).query(" ".join(sql.split())).refresh(2)
    return made.multi(multi).include_all(multi)


def _cluster() -> Any:
    return _variable("cluster", "SELECT DISTINCT cluster FROM headroom.headroom_now ORDER BY cluster", multi=True)


def fleet() -> Any:
    """Who is close to a limit."""
    made = _new("headroom-fleet", "Headroom / Fleet").with_variable(_cluster())
    panels = [
        rows(
            "Closest to a limit",
            "The last window of each client on its worst broker, worst first.",
            f"""SELECT level, cluster, user, client_id, quota_key, round(utilization, 3) AS utilization, usage, limit,
            throttle_ms, matched_entity, reason FROM headroom.headroom_now WHERE {_FILTER}
            ORDER BY level = 'throttled' DESC, utilization DESC NULLS LAST LIMIT 100""",
        ),
        rows(
            "Throttled now",
            "Clients that brokers delay at this moment, or did in the last minute.",
            f"""SELECT cluster, user, client_id, quota_key, broker_id, is_muted, throttle_ms, throttled_since, limit
            FROM headroom.throttled_now WHERE {_FILTER} ORDER BY throttle_ms DESC LIMIT 100""",
            _HALF,
        ),
        rows(
            "Silent clients",
            "Pushed telemetry before, do not now, and are not muted.",
            f"""SELECT cluster, user, client_id, software_name, software_version, last_seen, silent_s
            FROM headroom.silent_clients WHERE {_FILTER} ORDER BY silent_s DESC LIMIT 100""",
            _HALF,
        ),
        lines(
            "Rate of the ten largest users",
            "Sum of the brokers' window rates.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 10 SECOND) AS time, user, sum(rate) / uniqExact(ts) AS rate
            FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {_FILTER} AND quota_key = 'producer_byte_rate'
            AND user IN (SELECT user FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {_FILTER}
            GROUP BY user ORDER BY sum(rate) DESC LIMIT 10) GROUP BY time, user ORDER BY time""",
            "Bps",
        ),
        rows(
            "Client versions with known telemetry bugs",
            "Upgrade these.",
            f"""SELECT software_name, software_version, instances, known_issue FROM headroom.bad_client_versions
            WHERE {_FILTER} ORDER BY instances DESC""",
            _HALF,
        ),
    ]
    return _with(made, panels)


def client() -> Any:
    """One client: usage against its limit, and what it felt."""
    made = _new("headroom-client", "Headroom / Client").with_variable(_cluster())
    made = made.with_variable(
        _variable("client", "SELECT DISTINCT client_id FROM headroom.headroom_now ORDER BY client_id", multi=False)
    )
    of = f"{_FILTER} AND client_id = ${{client:singlequote}}"
    panels = [
        lines(
            "Usage by broker",
            "The window rate as the broker itself measures it.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 5 SECOND) AS time,
            concat(quota_key, ' @', toString(broker_id)) AS line,
            avg(rate) AS rate FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {of}
            GROUP BY time, line ORDER BY time""",
            "Bps",
        ),
        lines(
            "Limit",
            "The limit in force as each row of usage was written.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 5 SECOND) AS time, quota_key, max(limit) AS quota_limit
            FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {of} AND limit IS NOT NULL
            GROUP BY time, quota_key ORDER BY time""",
            "Bps",
        ),
        lines(
            "Throttle time announced",
            "Longest throttle time of each interval.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 5 SECOND) AS time,
            concat(quota_key, ' @', toString(broker_id)) AS line,
            max(throttle_ms) AS throttle FROM headroom.quota_usage WHERE $__timeFilter(ts) AND {of}
            GROUP BY time, line ORDER BY time""",
            "ms",
        ),
        lines(
            "Request latency as the client measured it",
            "From the client's own telemetry.",
            f"""SELECT toStartOfInterval(ts, INTERVAL 10 SECOND) AS time, metric, max(value) AS latency
            FROM headroom.client_metrics WHERE $__timeFilter(ts) AND {of} AND endsWith(metric, 'latency.max')
            AND NOT isNaN(value) GROUP BY time, metric ORDER BY time""",
            "ms",
        ),
        rows(
            "Instances",
            "Running and recent instances of the client.",
            f"""SELECT principal, client_instance_id, software_name, software_version, source_address, first_seen,
            last_seen, pushes FROM headroom.client_instances FINAL WHERE {of} ORDER BY last_seen DESC LIMIT 100""",
        ),
    ]
    return _with(made, panels)


def quota() -> Any:
    """Rules and how full they are."""
    made = _new("headroom-quota", "Headroom / Quotas").with_variable(_cluster())
    panels = [
        rows(
            "Quotas by user",
            "What each user takes of each quota.",
            f"""SELECT cluster, quota_key, user, usage, bytes, clients, throttled, round(utilization, 3) AS utilization
            FROM headroom.usage_by_user WHERE {_FILTER} ORDER BY utilization DESC NULLS LAST LIMIT 100""",
        ),
        rows(
            "Changes of quotas",
            "Newest first.",
            f"""SELECT changed_at, cluster, entity, quota_key, before, after FROM headroom.quota_changes
            WHERE {_FILTER} AND $__timeFilter(changed_at) ORDER BY changed_at DESC LIMIT 100""",
            _HALF,
        ),
        rows(
            "Verdicts of the Spark job",
            "How many clients were at each level, by window.",
            f"""SELECT window_start AS time, level, count() AS clients FROM headroom.quota_utilization FINAL
            WHERE {_FILTER} AND $__timeFilter(window_start) GROUP BY time, level ORDER BY time DESC LIMIT 100""",
            _HALF,
        ),
        graph(
            "Utilization of the fullest quotas",
            "kafka_client_quota_utilization_ratio, needs quotas.metrics.enabled.",
            "topk(10, max without (instance, pod, job) (kafka_client_quota_utilization_ratio))",
            "percentunit",
            "{{user}} {{client_id}} {{quota_type}}",
            _WIDE,
        ),
    ]
    return _with(made, panels)


def own_health() -> Any:
    """Headroom itself."""
    made = _new("headroom-self", "Headroom / Health")
    panels = [
        number("Store", "1: ClickHouse takes rows.", "min(headroom_store_up)", "short"),
        number(
            "Waiting in the spool",
            "Records that are not written yet.",
            'sum(headroom_records{state="buffered"})',
            "short",
        ),
        number("Dropped", "Since the spool began.", "sum(headroom_dropped_total)", "short"),
        graph(
            "Pushes",
            "Answers by error code.",
            "sum by (code) (rate(headroom_push_telemetry_total[$__rate_interval]))",
            "reqps",
            "{{code}}",
        ),
        graph(
            "Records written",
            "Per second.",
            'sum(rate(headroom_records{state="written"}[$__rate_interval]))',
            "short",
            "written",
        ),
        graph(
            "Spool",
            "Against its bound.",
            "sum(headroom_spool_bytes) / sum(headroom_spool_max_bytes)",
            "percentunit",
            "full",
        ),
        graph(
            "Drops",
            "By reason.",
            "sum by (reason) (increase(headroom_dropped_total[$__rate_interval]))",
            "short",
            "{{reason}}",
        ),
        graph("Connections", "Of clients.", "sum(headroom_connections)", "short", "open"),
        graph(
            "OTLP requests",
            "By transport and outcome.",
            "sum by (transport, outcome) (rate(headroom_otlp_requests_total[$__rate_interval]))",
            "reqps",
            "{{transport}} {{outcome}}",
        ),
        rows(
            "Runs of the Spark jobs",
            "Newest first.",
            """SELECT job, status, started_at, finished_at, rows_in, rows_out, error FROM headroom.job_runs FINAL
            ORDER BY started_at DESC LIMIT 50""",
        ),
    ]
    return _with(made, panels)


def _with(made: dashboard.Dashboard, panels: list[Any]) -> Any:
    for number_, panel in enumerate(panels, start=1):
        made = made.with_panel(panel.id(number_))
    return made.build()


DASHBOARDS = {"fleet": fleet, "client": client, "quota": quota, "health": own_health}


def as_json(name: str) -> str:
    """The committed text of a dashboard."""
    return json.dumps(DASHBOARDS[name](), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Writes all of them."""
    for name in DASHBOARDS:
        (HERE / f"{name}.json").write_text(as_json(name))


if __name__ == "__main__":
    main()
