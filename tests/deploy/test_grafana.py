"""The Grafana dashboards: every query runs, and what they draw is what levels are."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from starlette.routing import Route

from exporters.self_metrics import CATALOGUE
from headroom.web.data import Data
from headroom.web.pages import page_routes
from quota_metrics.amounts import STYLES
from quota_metrics.verdict.thresholds import STEPS, Thresholds
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.debian import promtool, run

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "grafana"
DASHBOARDS = ("fleet", "client", "quota", "health")
DOCUMENTS = {name: json.loads((HERE / f"{name}.json").read_text()) for name in DASHBOARDS}
CLICKHOUSE = "grafana-clickhouse-datasource"
_VALUES = {"${database}": "headroom", "${cluster:singlequote}": "'c'", "${client:singlequote}": "'app'"}
_VALUES |= {"${source:singlequote}": "'gateway'"}
_OF_A_SOURCE = re.compile(r"\}\.(?:headroom_now|throttled_now|usage_by_user|quota_usage|quota_utilization)\b")
_TIME_FILTER = re.compile(r"\$__timeFilter\((\w+)\)")


def targets(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each query of a data source, with the title of its panel."""
    for name in DASHBOARDS:
        for panel in DOCUMENTS[name]["panels"]:
            for target in panel["targets"]:
                if target["datasource"]["type"] == kind:
                    yield f"{name}: {panel['title']}", target


def marks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each query of marks, with its dashboard."""
    for name in DASHBOARDS:
        for made in DOCUMENTS[name]["annotations"].get("list", []):
            yield f"{name}: {made['name']}", made["target"]


def panel_of(dashboard: str, title: str) -> dict[str, Any]:
    (found,) = (panel for panel in DOCUMENTS[dashboard]["panels"] if panel["title"] == title)
    return dict(found)


def filled(sql: str) -> str:
    """The query as Grafana's plug-in sends it."""
    for macro, value in _VALUES.items():
        sql = sql.replace(macro, value)
    return _TIME_FILTER.sub(r"\1 >= toDateTime(1700000000) AND \1 <= toDateTime(1800000000)", sql)


def an_hour_ago() -> datetime:
    """The beginning of a minute: older usage would be deleted."""
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)


def test_each_file_is_a_dashboard_that_names_no_database_of_ours() -> None:
    assert sorted(file.stem for file in HERE.glob("*.json")) == sorted(DASHBOARDS)
    for name in DASHBOARDS:
        assert not re.search(r"(FROM|JOIN) headroom\.", (HERE / f"{name}.json").read_text()), name


def test_usage_that_gateways_and_jmx_measured_is_not_counted_twice() -> None:
    """In the dashboard of one client the lines and rows name their source."""
    for title, target in targets(CLICKHOUSE):
        of_one = target["rawSql"].count(" AND source = ${source:singlequote}")
        assert title.startswith("client") or of_one == len(_OF_A_SOURCE.findall(target["rawSql"])), title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_ids_titles_descriptions_and_distinct_positions(name: str) -> None:
    document = DOCUMENTS[name]
    panels = document["panels"]
    assert (document["uid"], document["editable"]) == (document["uid"].lower(), False)
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    (others,) = document["links"]
    assert (others["type"], others["includeVars"], others["keepTime"]) == ("dashboards", True, True)
    assert set(others["tags"]) <= set(document["tags"])


def test_thresholds_are_those_of_levels() -> None:
    of_levels = [None, *Thresholds().steps]
    drawn = panel_of("client", "Share of the limit")["fieldConfig"]["defaults"]
    assert [step["value"] for step in drawn["thresholds"]["steps"]] == of_levels
    assert drawn["custom"]["thresholdsStyle"] == {"mode": "dashed"}
    for dashboard, title in (("client", "Now"), ("fleet", "Closest to a limit")):
        (override,) = panel_of(dashboard, title)["fieldConfig"]["overrides"]
        shown = {one["id"]: one["value"] for one in override["properties"]}
        assert override["matcher"]["options"] == "utilization"
        assert [step["value"] for step in shown["thresholds"]["steps"]] == of_levels
        assert [step["color"] for step in shown["thresholds"]["steps"]] == [
            STYLES[level].light for level in ("ok", *STEPS)
        ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("grafana") / "clickhouse") as running:
        yield running


@pytest.mark.clickhouse
def test_every_query_runs_as_a_reader(server: RunningClickHouse) -> None:
    client = connected(server.reader)
    ran = 0
    for title, target in [*targets(CLICKHOUSE), *marks()]:
        sql = filled(target["rawSql"])
        assert "$" not in sql, title
        client.query(sql)
        columns = [row[0] for row in client.query(f"DESCRIBE ({sql})").result_rows]
        if target["format"] == 0:
            assert columns[0] == "time", title
        ran += 1
    client.close()
    assert ran == 18


@pytest.mark.clickhouse
def test_rows_lead_to_the_page_of_their_client(server: RunningClickHouse) -> None:
    """Each column that a link names is one of its query, and the page is one of Headroom's."""
    client = connected(server.reader)
    served = {route.path for route in page_routes(cast("Data", Mock())) if isinstance(route, Route)}
    linked: set[str] = set()
    for name in DASHBOARDS:
        for panel in DOCUMENTS[name]["panels"]:
            for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", []):
                columns = {
                    row[0] for row in client.query(f"DESCRIBE ({filled(panel['targets'][0]['rawSql'])})").result_rows
                }
                fields = set(re.findall(r"\$\{__data\.fields\.(\w+):percentencode\}", link["url"]))
                assert fields and fields <= columns, panel["title"]
                if link["url"].startswith("${headroom:raw}"):
                    assert urlsplit(link["url"].removeprefix("${headroom:raw}")).path in served
                    linked.add(f"{name}: {panel['title']}")
                else:
                    assert link["url"].startswith("/d/headroom-client?")
    client.close()
    assert linked == {
        "fleet: Closest to a limit", "fleet: Throttled now", "fleet: Silent clients", "client: Now",
        "quota: Quotas by user", "quota: Changes of quotas",
    }  # fmt: skip


@pytest.mark.clickhouse
def test_usage_of_a_client_is_added_up_as_on_its_page(server: RunningClickHouse) -> None:
    """Two gateways, two addresses; another user, and another source of the same usage, have lines of their own."""
    client = connected(server.writer)
    at = an_hour_ago()
    rows = [
        # user, ip, gateway, source, seconds after, rate
        ("u", "10.0.0.1", "g1", "gateway", 0, 100.0), ("u", "10.0.0.2", "g1", "gateway", 0, 20.0),
        ("u", "10.0.0.1", "g2", "gateway", 0, 30.0), ("u", "10.0.0.1", "g1", "gateway", 1, 50.0),
        ("v", "10.0.0.1", "g1", "gateway", 0, 500.0),
    ]  # fmt: skip
    gateways = [
        ("c", "producer_byte_rate", at + timedelta(seconds=after), user, "app", ip, 1, rate, source, gateway, 1000)
        for user, ip, gateway, source, after, rate in rows
    ]
    observed = ("c", "producer_byte_rate", at, "u", "app", "", 1, 77.0, "jmx", "", 0)
    columns = "cluster quota_key ts user client_id ip broker_id rate source gateway_id interval_ms"
    client.insert("headroom.quota_usage", [*gateways, observed], columns.split())
    sql = filled(panel_of("client", "Usage by broker")["targets"][0]["rawSql"])
    found = {row[1]: row[2] for row in client.query(sql).result_rows}
    # (100 + 20 + 30) and 50 over the five seconds of a step; a sample without an interval stands for the step
    assert found == {
        "c u producer_byte_rate @1 gateway": 40.0,
        "c v producer_byte_rate @1 gateway": 100.0,
        "c u producer_byte_rate @1 jmx": 77.0,
    }
    client.command("TRUNCATE TABLE headroom.quota_usage")
    client.close()


@pytest.mark.clickhouse
def test_changes_of_the_quotas_that_can_apply_to_a_client_are_marked(server: RunningClickHouse) -> None:
    client = connected(server.writer)
    at = an_hour_ago()
    client.insert(
        "headroom.quota_usage",
        [("c", "producer_byte_rate", at, "u", "app", 1, 1.0, "gateway")],
        ["cluster", "quota_key", "ts", "user", "client_id", "broker_id", "rate", "source"],
    )
    client.insert(
        "headroom.quota_limits",
        [
            ("c", user, client_id, "", "producer_byte_rate", at, 100.0)
            for user, client_id in (("u", ""), ("", "app"), ("", "<default>"), ("other", "app"), ("u", "another"))
        ]
        + [("c", "u", "", "", "producer_byte_rate", at + timedelta(minutes=1), 200.0)],
        ["cluster", "user", "client_id", "ip", "quota_key", "valid_from", "value"],
    )
    queries = dict(marks())
    of_client, of_all = (
        client.query(filled(queries[f"{name}: Quota changes"]["rawSql"])).result_rows for name in ("client", "quota")
    )
    assert sorted((row[1], row[2]) for row in of_client) == [
        ("client-id=<default> producer_byte_rate", "none to 100"),
        ("client-id=app producer_byte_rate", "none to 100"),
        ("user=u producer_byte_rate", "100 to 200"),
        ("user=u producer_byte_rate", "none to 100"),
    ]
    assert len(of_all) == 6
    for table in ("quota_usage", "quota_limits"):
        client.command(f"TRUNCATE TABLE headroom.{table}")
    client.close()


@pytest.mark.clickhouse
def test_every_variable_runs_as_a_reader(server: RunningClickHouse) -> None:
    client = connected(server.reader)
    for name in DASHBOARDS:
        for variable in DOCUMENTS[name]["templating"]["list"]:
            if variable["type"] == "query":
                client.query(filled(variable["query"]))
    client.close()


@pytest.mark.promtool
def test_promql_is_valid_and_uses_exposed_metrics(tmp_path: Path) -> None:
    exprs = [target["expr"].replace("$__rate_interval", "5m") for _, target in targets("prometheus")]
    rules = [{"record": f"panel:query{n}:value", "expr": expr} for n, expr in enumerate(exprs)]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    status, said = run(promtool(ROOT), "check", "rules", "--lint=none", str(file))
    assert status == 0, said
    exposed = {metric.name for metric in CATALOGUE}
    used = {name for expr in exprs for name in re.findall(r"\b(?:headroom|kafka_client)_\w+", expr)}
    assert used - exposed == set()
    assert len(exprs) == 10
