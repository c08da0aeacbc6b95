"""One what-if engine: API, page and command give the same numbers and the same text, over drawn recordings."""

import itertools
import json
import random
import re
import shlex
import time
from collections.abc import Iterator
from html import unescape
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from exporters.model import QuotaLimit
from headroom.cli.main import app
from quota_metrics.amounts import duration_text
from telemetry.ingest.arrow_tables import limits_table, usage_table
from tests.headroom.web.conftest import HTTP
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.recordings import CONSUMER, PRODUCER, START_MS, Used, recorded
from tests.kit.serving import Served, eventually

pytestmark = [pytest.mark.clickhouse]

CASES = 12
SECONDS = 240
USERS, CLIENTS = ("alice", "bob <b>"), ("app", "job")
_FETCH = 1


class Case(NamedTuple):
    """A cluster with a recording, and a change of a quota."""

    cluster: str
    entity: dict[str, str | None]
    quota_key: str
    value: int | None

    def parameters(self) -> dict[str, str]:
        names = {kind.replace("-", "_"): "<default>" if name is None else name for kind, name in self.entity.items()}
        value = "" if self.value is None else str(self.value)
        return {"cluster": self.cluster, "quota_key": self.quota_key, "value": value, "since": "15m", **names}


def write(running: RunningClickHouse, cluster: str, draw: random.Random) -> None:
    start_ms = (time.time_ns() // 60_000_000_000 - 9) * 60_000
    loads = []
    for user, client_id in itertools.product(USERS, CLIENTS):
        level, burst = draw.choice([200, 900, 1500, 4000]), draw.choice([0, 0, 9000])
        counts = [level + (burst if second % 60 < 5 else 0) + draw.randrange(20) * 10 for second in range(SECONDS)]
        api_key = draw.choice([0, _FETCH])
        loads.append(Used(user, client_id, counts, draw.choice([0, 0, 300]), draw.choice([1, 2]), api_key))
    rows = [row._replace(cluster=cluster, ts_ms=row.ts_ms - START_MS + start_ms) for row in recorded(*loads)]
    running.store.insert("quota_usage", usage_table(rows, start_ms), token=cluster)
    limits = [
        QuotaLimit(
            cluster, user, client_id, "", key, start_ms + draw.choice([-9, 60]) * 1000, draw.choice([800.0, 3e4])
        )
        for user, client_id in (("alice", ""), ("<default>", "<default>"), ("", "job"))
        for key in (PRODUCER, CONSUMER)
        if draw.random() < 0.5
    ]
    if limits:
        running.store.insert("quota_limits", limits_table(limits, start_ms), token=f"{cluster}-limits")


def drawn_case(draw: random.Random, cluster: str) -> Case:
    user, client_id = draw.choice([*USERS, None, ""]), draw.choice([*CLIENTS, None, ""])
    entity = {kind: name for kind, name in (("user", user), ("client-id", client_id)) if name != ""}
    value = draw.choice([None, 500, 1000, 2500, 50_000])
    return Case(cluster, entity or {"user": None}, draw.choice([PRODUCER, CONSUMER]), value)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str, list[Case]]]:
    directory = tmp_path_factory.mktemp("what-if")
    draw = random.Random(20)
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        for number in range(CASES):
            write(running, f"case-{number}", draw)
        with Served(directory, environment=running.environment) as served:
            eventually(served.ready, lambda ready: ready[0] == 200)
            yield served, running.url, [drawn_case(draw, f"case-{number}") for number in range(CASES)]


def page_rows(html: str) -> list[list[str]]:
    table = html.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [unescape(re.sub(r"</?span[^>]*>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in table.split("<tr>")
        if "<td" in row
    ]


def answers(served: Served, url: str, case: Case) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Of the API, the page and the command that both show, over the same minutes."""
    while True:
        api = HTTP.get(f"http://{served.http}/api/v1/what-if", params=case.parameters())
        page = HTTP.get(f"http://{served.http}/quotas/what-if", params=case.parameters())
        assert (api.status_code, page.status_code) == (200, 200), api.text
        arguments = shlex.split(api.json()["what_if"])[1:]
        command = CliRunner().invoke(app, [*arguments, "--url", url, "--output", "json"])
        assert command.exit_code == 0, command.output
        found = json.loads(command.stdout)
        if api.json()["covers"] == found["covers"] and found["covers"]["to"] in page.text:
            return api.json(), page.text, found


def test_api_page_and_command_agree(cases: tuple[Served, str, list[Case]]) -> None:
    served, url, asked = cases
    verdicts: set[str] = set()
    for case in asked:
        api, page, command = answers(served, url, case)
        of_page = {name: api.pop(name) for name in ("what_if", "since", "covers_text")}
        assert of_page["since"] == "15m"
        assert api == command, case
        expected = []
        for row in [row for row in api["clients"] if row["affected"]]:
            throttled = " → ".join(duration_text(row[side]["throttled_s"] * 1000) for side in ("before", "after"))
            named = [row["verdict"], row["client_id"], row["user"], str(row["broker_id"])]
            expected.append([*named, throttled, row["reason"]])
        assert [[*row[:4], row[5], row[7]] for row in page_rows(page)] == expected, case
        assert of_page["covers_text"] in unescape(page)
        verdicts |= api["counts"].keys()
    assert verdicts == {"newly throttled", "still throttled", "freed", "unchanged"}
