"""What templates link to and offer to copy, for names that clients made up."""

from __future__ import annotations

from typing import Any

import pytest

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
        rows=[], groups=groups, seen=[], not_seen="", most_seen=100, counts={}, clusters=clusters,
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


@pytest.mark.parametrize(
    ("command", "buttons"),
    [("headroom --user=alice", 1), ("a\x1b[2Jb", 0), ("a\nrm -rf b", 0), ("a\N{RIGHT-TO-LEFT OVERRIDE}b", 0)],
)
def test_only_what_can_be_seen_is_copied(command: str, buttons: int) -> None:
    copied = PAGES.from_string('{% from "macros.html" import copy %}{{ copy(command, "copy") }}').render(
        command=command
    )
    assert copied.count("<button") == buttons
