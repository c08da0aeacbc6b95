"""`headroom top` and `headroom status` beside a running service; teams on the API, on pages and in `top`."""

import html
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from exporters.model import UNOWNED
from headroom.cli.main import app
from tests.headroom.web.conftest import HOSTILE, HTTP
from tests.kit.serving import Served

pytestmark = pytest.mark.clickhouse

NOBODY = "127.0.0.1:1"
TEAMS = {
    "app-ok": UNOWNED, "app-critical": UNOWNED, "app-throttled": UNOWNED,
    "app-watch": "payments", "app-warn": "payments", HOSTILE: HOSTILE,
}  # fmt: skip


def ask(served: str, path: str, **given: str) -> Any:
    return HTTP.get(f"{served}/api/v1/{path}", params=given).json()


def page(served: str, path: str, **given: str) -> str:
    return HTTP.get(f"{served}{path}", params=given).text


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def top(serving: Served, *arguments: str) -> list[str]:
    done = run("top", "--once", "--http", serving.http, *arguments)
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


def test_status_of_a_healthy_service(serving: Served) -> None:
    result = run("status", "--http", serving.http)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "ready: nothing is late, dropped or degraded"
    assert [line.split()[0] for line in result.stdout.splitlines()[2:7]] == ["ok"] * 5
    assert "headroom_store_up" in run("status", "--raw", "--http", serving.http).stdout
    tiles = json.loads(run("status", "--output", "json", "--http", serving.http).stdout)["tiles"]
    assert [1 <= len(tile["trend"]["values"]) <= 60 for tile in tiles] == [True] * 5
    assert tiles[3]["trend"]["of"] == "bytes in the spool"


def test_top_by_cost_reads_what_payers_sent(serving: Served) -> None:
    result = run("top", "--by", "cost", "--output", "json", "--http", serving.http)
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_top_by_topic_has_shares_and_what_they_are_worth(serving: Served) -> None:
    result = run("top", "--by", "topic", "--output", "json", "--client-id", "app-warn", "--http", serving.http)
    rows = json.loads(result.stdout)
    assert [(row["topic"], row["direction"], row["share"]) for row in rows] == [
        ("orders", "in", 0.75), ("refunds", "in", 0.25),
    ]  # fmt: skip
    assert {row["team"] for row in rows} == {"payments"}
    assert [row["topic_team"] for row in rows] == ["shop", UNOWNED]
    minutes = rows[0]["bytes"] / 300_000
    assert rows[0]["rate"] == pytest.approx(rows[0]["bytes"] / 3600)
    assert rows[0]["bytes_error"] / rows[0]["bytes"] == pytest.approx((0.99 / (100 * minutes)) ** 0.5)
    assert rows[0]["sampled_frames"] == 100 * minutes
    shown = run("top", "--by", "topic", "--team", "payments", "--http", serving.http)
    assert [line.split()[:4] for line in shown.stdout.splitlines()] == [
        ["topic", "owner", "direction", "client"],
        ["orders", "shop", "in", "app-warn"],
        ["refunds", UNOWNED, "in", "app-warn"],
    ]
    assert "No topics were read" in run("top", "--by", "topic", "--user", "nobody", "--http", serving.http).stdout


def test_status_of_a_service_without_store_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", "")
    with Served(tmp_path, "--clickhouse", f"http://{NOBODY}") as away:
        result = run("status", "--http", away.http)
        assert result.exit_code == 1, result.output
        assert "not ready: " in result.stdout
        top = run("top", "--once", "--http", away.http)
        assert top.exit_code == 3
        said = f"headroom: {away.http}: the store cannot be read: cannot reach http://{NOBODY}"
        assert top.stderr.startswith(said)
