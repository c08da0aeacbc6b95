"""What pages show of rows, runbooks and made-up names, without a store: reasons, units, links, what may be copied."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from exporters.model import UNOWNED
from headroom.web.data import Data
from headroom.web.overview_rows import SHORT_CHARS, short_reason
from headroom.web.pages import page_routes
from headroom.web.rendering import environment
from headroom.web.runbooks import Block, blocks, inline, runbook
from headroom.web.usage_chart import metric_unit

PAGES = environment()
NAMES = sorted(page.stem for page in (Path(__file__).parents[3] / "docs" / "runbooks").glob("*.md"))
RULE = "producer_byte_rate 200.0 kB/s of user=web, client-id=<default>"
NEAR = f"at 99.0 % of {RULE}, 2.0 kB/s headroom"
MUTED = f"muted 10.4 s of 60 s on broker 1, throttle times up to 884 ms: wants more than {RULE}"


def group(cluster: str, name: str) -> dict[str, Any]:
    return {
        "id": f"{cluster}-{name}", "cluster": cluster, "name": name, "quota_key": "producer_byte_rate", "worst": "ok",
        "clients": 1.0, "near": 0.0, "fullest": 0.5, "all_usage": 1.0, "all_muted_ms": 0.0,
    }  # fmt: skip


def overview(groups: list[dict[str, Any]], clusters: list[str]) -> str:
    freshness = {"state": "late", "shown_s": None}
    return PAGES.get_template("overview.html").render(
        rows=[], groups=groups, counts={}, clusters=clusters,
        given={"by": "user"}, kept={"by": "user"}, levels=(), groupings={"user": "user"}, path="/",
        page={"offset": 0, "limit": 100, "shown": len(groups), "total": len(groups)}, freshness=freshness,
    )  # fmt: skip


def test_group_leads_to_its_own_cluster() -> None:
    shown = overview([group("east", "alice"), group("west", "alice")], ["east", "west"])
    assert 'href="/?cluster=east&amp;user=alice"' in shown
    assert 'href="/?cluster=west&amp;user=alice"' in shown
    assert "<td>west</td>" in shown


def test_group_without_a_name_leads_to_no_filter() -> None:
    shown = overview([group("east", "")], ["east"])
    assert "(none)" in shown
    assert "user=" not in shown.partition("table")[2]


def test_client_page_links_who_makes_the_client_slow() -> None:
    slowed = {
        "slowed_by_user": "batch", "slowed_by_client_id": "<back fill>", "slowed_at_broker_id": 2,
        "latency_ms": 2400.0, "latency_before_ms": 300.0,
    }  # fmt: skip
    client = {
        "cluster": "east", "user": "alice", "client_id": "app", "team": UNOWNED, "quotas": [], "stopped": [],
        "felt": [], "instances": [], "topics": [], "slowed": slowed,
    }  # fmt: skip
    given = {"ranges": {}, "range": "", "path": "/clients/detail", "freshness": {"state": "late", "shown_s": None}}
    shown, without = (
        PAGES.get_template("client.html").render(client={**client, "slowed": found}, **given)
        for found in (slowed, None)
    )
    said = shown.partition('id="slowed">')[2].partition("</p>")[0]
    assert "its requests take up to 2.4 s, 300 ms before, and" in said
    assert 'href="/clients/detail?cluster=east&amp;user=batch&amp;client_id=%3Cback+fill%3E"' in said
    assert said.endswith("takes most of broker 2.")
    assert "slowed" not in without


@pytest.mark.parametrize(
    ("command", "buttons"),
    [("headroom --user=alice", 1), ("a\x1b[2Jb", 0), ("a\nrm -rf b", 0), ("a\N{RIGHT-TO-LEFT OVERRIDE}b", 0)],
)
def test_only_what_can_be_seen_is_copied(command: str, buttons: int) -> None:
    copied = PAGES.from_string('{% from "macros.html" import copy %}{{ copy(command, "copy") }}').render(
        command=command
    )
    assert copied.count("<button") == buttons


class Foreign:
    """Data of a cluster with a quota of another vendor's entity type."""

    def __init__(self) -> None:
        self.own, self.watch = None, self

    async def nothing(self, _: Any) -> list[Any]:
        return []

    quotas = quota_changes = suggestions = nothing

    def status(self) -> dict[str, Any]:
        return {"cluster": {"not_understood": ["client-id-prefix=app-\x1b[1m"]}}

    async def answer(self, answer: Awaitable[Any]) -> Any:
        return await answer

    async def freshness(self) -> dict[str, Any]:
        return {"state": "late", "shown_s": None}


def test_quotas_that_are_not_understood_are_listed() -> None:
    shown = TestClient(Starlette(routes=page_routes(cast(Data, Foreign())))).get("/quotas").text
    assert "Not understood, may apply" in shown
    assert '<li class="name">client-id-prefix=app-' in shown
    assert "\x1b" not in shown


def short(reason: str) -> str:
    row = {"reason": reason, "quota_key": "producer_byte_rate", "matched_entity": "user=web, client-id=<default>"}
    return short_reason(row)


@pytest.mark.parametrize(
    ("reason", "beside"),
    [
        (f"{NEAR} on broker 1", "2.0 kB/s headroom"),
        (f"{NEAR} at the controller; bursts to 92.0 %", "2.0 kB/s headroom; bursts to 92.0 %"),
        (
            f"{NEAR} on broker 1; another client shares this quota, app takes 97 % of it",
            "app takes 97 % of this quota; 2.0 kB/s headroom",
        ),
        (MUTED, "wants more than its quota"),
        (
            f"{MUTED}; 2 other clients share this quota, this client takes 80 % of it",
            "this client takes 80 % of this quota; wants more than its quota",
        ),
        ("no quota applies", "no quota applies"),
        ("no quota was observed yet", "no quota was observed yet"),
    ],
)
def test_short_reason_says_what_the_columns_do_not(reason: str, beside: str) -> None:
    assert short(reason) == beside


@pytest.mark.parametrize("name", ["; ", " of user=web, ", "takes 100 % of it; another", "x" * 300])
def test_no_name_makes_a_reason_longer(name: str) -> None:
    found = short(f"{NEAR} on broker 1; another client shares this quota, {name} takes 97 % of it")
    assert 0 < len(found) <= SHORT_CHARS


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("request.latency.avg", "ms"),
        ("produce.throttle.time.max", "ms"),
        ("record.queue.time.avg", "ms"),
        ("io.wait.time.ns.avg", "ns"),
        ("outgoing.byte.rate", "B/s"),
        ("outgoing.byte.total", "B"),
        ("record.error.rate", "/s"),
        ("io.ratio", ""),
        ("record.send.total", ""),
    ],
)
def test_unit_of_a_metric(metric: str, unit: str) -> None:
    assert metric_unit(f"org.apache.kafka.producer.{metric}") == unit


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_each_word_of_its_runbook(name: str) -> None:
    text = runbook(name)
    assert text is not None
    found = list(blocks(text))
    assert [block.kind for block in found].count("command") == 1
    assert {len(row) for block in found for row in block.rows} == {2}
    body = re.sub(r"^# .*|^```\w*$|^\|---.*", "", text, flags=re.MULTILINE)
    shown = [block.text + " " + " ".join(" ".join(row) for row in block.rows) for block in found]
    assert words(" ".join(shown)) == words(body)


def test_a_page_has_headings_a_command_to_copy_and_links() -> None:
    table = "| if | then |\n|---|---|\n| a | [Other](Other.md), `x --y` |\n"
    text = f"# N\n\nWhy <b>.\n\n## Look\n\n```\ncurl -s x\n```\n\n{table}"
    page = PAGES.get_template("runbook.html")
    shown = page.render(name="N", blocks=list(blocks(text)), path="/", freshness={"state": "late", "shown_s": None})
    assert "<h2>Look</h2>" in shown
    assert 'data-copy="curl -s x"' in shown
    assert '<td><a href="/runbooks/Other">Other</a>, <code>x --y</code></td>' in shown
    assert "Why &lt;b&gt;." in shown


def test_only_runbooks_are_links() -> None:
    assert inline("[x](javascript:alert) [y](../a.md)") == "[x](javascript:alert) [y](../a.md)"
    assert list(blocks("plain\nlines")) == [Block("text", "plain lines")]
