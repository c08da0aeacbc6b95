"""The team of a client, by the file of owners: on the API, the pages and in `headroom top`."""

from __future__ import annotations

import html
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from exporters.model import UNOWNED
from headroom.cli.main import app
from tests.headroom.web.conftest import HOSTILE
from tests.kit.serving import Served

pytestmark = pytest.mark.clickhouse

TEAMS = {
    "app-ok": UNOWNED, "app-critical": UNOWNED, "app-throttled": UNOWNED,
    "app-watch": "payments", "app-warn": "payments", HOSTILE: HOSTILE,
}  # fmt: skip


def ask(served: str, path: str, **given: str) -> Any:
    return httpx.get(f"{served}/api/v1/{path}", params=given, timeout=60).json()


def page(served: str, path: str, **given: str) -> str:
    return httpx.get(f"{served}{path}", params=given, timeout=60).text


def top(serving: Served, *arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["top", "--once", "--http", serving.http, *arguments])
    assert done.exit_code == 0, done.output
    lines: list[str] = done.stdout.splitlines()
    return lines


def test_each_verdict_names_its_team_and_teams_filter(served: str) -> None:
    found = {row["client_id"]: row["team"] for row in ask(served, "headroom")}
    assert found == TEAMS
    for team in ("payments", UNOWNED, HOSTILE, "nobody"):
        rows = ask(served, "headroom", team=team)
        assert {row["client_id"] for row in rows} == {name for name, of in TEAMS.items() if of == team}


def test_client_says_how_its_team_is_reached(served: str) -> None:
    names = {"cluster": "prod", "user": "alice", "client_id": "app-warn"}
    client = ask(served, "client", **names)
    reached = ("payments", "pay@example.org", "https://wiki.example.org/pay")
    assert (client["team"], client["contact"], client["page"]) == reached
    shown = page(served, "/clients/detail", **names)
    assert 'href="/?cluster=prod&amp;team=payments"' in shown
    assert 'href="https://wiki.example.org/pay"' in shown
    hostile = page(served, "/clients/detail", cluster="prod", user=HOSTILE, client_id=HOSTILE)
    assert "javascript:alert(3)" in hostile
    assert 'href="javascript:' not in hostile
    assert HOSTILE not in hostile
    assert html.escape(HOSTILE) in hostile.replace("&#34;", "&quot;")
    without = page(served, "/clients/detail", **{**names, "client_id": "app-ok"})
    assert "<p>team" not in without


def test_teams_are_groups_with_totals(served: str, serving: Served) -> None:
    shown = page(served, "/", by="team")
    assert 'href="/?cluster=prod&amp;team=payments">payments' in shown
    assert "<option selected>team</option>" in shown
    assert 'aria-label="all, not only team payments"' in page(served, "/", team="payments")
    lines = [line.split() for line in top(serving, "--by", "team")]
    clients = {line[1]: line[3] for line in lines[1:] if line[1] in ("payments", UNOWNED)}
    assert clients == {"payments": "2", UNOWNED: "3"}


def test_top_shows_a_column_of_teams_and_filters(serving: Served) -> None:
    heading, *rows = top(serving, "--team", "payments")
    assert "team" in heading.split()
    assert [(line.split()[1], "payments" in line) for line in rows] == [("app-warn", True), ("app-watch", True)]
    heading, *rows = top(serving, "--team", UNOWNED)  # nothing to tell apart
    assert "team" not in heading.split()
    assert len(rows) == 3


def test_topics_name_their_own_team(served: str) -> None:
    rows = ask(served, "topics")
    assert {row["topic"]: row["topic_team"] for row in rows} == {"orders": "shop", "refunds": UNOWNED, HOSTILE: HOSTILE}
    assert {row["topic"] for row in ask(served, "topics", topic_team="shop")} == {"orders"}
    assert ask(served, "topics", topic_team="shop", team=UNOWNED) == []
    topics = page(served, "/clients/detail", cluster="prod", user="alice", client_id="app-warn").split('id="topics"')[1]
    assert '<td class="name">orders</td><td class="name">shop</td>' in topics
