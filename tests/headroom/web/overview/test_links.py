"""What templates link to and offer to copy, for names that clients made up."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from exporters.model import UNOWNED
from headroom.web.data import Data
from headroom.web.pages import page_routes
from headroom.web.rendering import environment

PAGES = environment()


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
