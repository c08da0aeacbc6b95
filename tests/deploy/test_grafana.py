"""The Grafana dashboards: the committed JSON is up to date, and every query runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.grafana.dashboards import DASHBOARDS, HERE, as_json
from deploy.grafana.panels import CLICKHOUSE
from exporters.self_metrics import CATALOGUE
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.promtool import promtool, run

ROOT = Path(__file__).parents[2]
_VALUES = {"${database}": "headroom", "${cluster:singlequote}": "'c'", "${client:singlequote}": "'app'"}
_TIME_FILTER = re.compile(r"\$__timeFilter\((\w+)\)")


def targets(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each query of a data source, with the title of its panel."""
    for name in DASHBOARDS:
        for panel in json.loads((HERE / f"{name}.json").read_text())["panels"]:
            for target in panel["targets"]:
                if target["datasource"]["type"] == kind:
                    yield f"{name}: {panel['title']}", target


def filled(sql: str) -> str:
    """The query as Grafana's plug-in sends it."""
    for macro, value in _VALUES.items():
        sql = sql.replace(macro, value)
    return _TIME_FILTER.sub(r"\1 >= toDateTime(1700000000) AND \1 <= toDateTime(1800000000)", sql)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_committed_dashboard_is_up_to_date(name: str) -> None:
    assert (HERE / f"{name}.json").read_text() == as_json(name), "python -m deploy.grafana.dashboards"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_ids_titles_descriptions_and_distinct_positions(name: str) -> None:
    document = json.loads((HERE / f"{name}.json").read_text())
    panels = document["panels"]
    assert (document["uid"], document["editable"]) == (document["uid"].lower(), False)
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("grafana") / "clickhouse") as running:
        yield running


@pytest.mark.clickhouse
def test_every_query_runs_as_a_reader(server: RunningClickHouse) -> None:
    client = connected(server.reader)
    ran = 0
    for title, target in targets(CLICKHOUSE):
        sql = filled(target["rawSql"])
        assert "$" not in sql, title
        client.query(sql)
        columns = [row[0] for row in client.query(f"DESCRIBE ({sql})").result_rows]
        if target["format"] == 0:
            assert columns[0] == "time", title
        ran += 1
    client.close()
    assert ran == 14


@pytest.mark.clickhouse
def test_every_variable_runs_as_a_reader(server: RunningClickHouse) -> None:
    client = connected(server.reader)
    for name in DASHBOARDS:
        for variable in json.loads((HERE / f"{name}.json").read_text())["templating"]["list"]:
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
