"""What pages show, without a store: reasons, units, links, what may be copied, runbooks, the five tiles of Status."""

import re
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from exporters.model import UNOWNED
from headroom.web.api import _endpoint
from headroom.web.data import Data
from headroom.web.overview_rows import SHORT_CHARS, short_reason
from headroom.web.pages import page_routes
from headroom.web.rendering import environment
from headroom.web.runbooks import Block, blocks, inline, runbook
from headroom.web.tiles import TRENDS, Reading, ServiceState, Tile, Trends, span_text, tile_rows, tiles
from headroom.web.usage_chart import metric_unit

PAGES = environment()
RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
NAMES = sorted(page.stem for page in RUNBOOKS.glob("*.md"))
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


def test_a_parameter_is_there_once_or_a_list_of_levels() -> None:
    api = Route("/api", _endpoint(dict))
    client = TestClient(Starlette(routes=[api, *page_routes(cast(Data, Foreign()))]))
    assert client.get("/api?level=warn&level=critical&user=u").json() == {"level": "warn,critical", "user": "u"}
    for path in ("/api", "/", "/quotas", "/clients/detail"):
        refused = client.get(f"{path}?user=u&user=v")
        assert (refused.status_code, "user is there more than once" in refused.text) == (400, True)


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


WELL = ServiceState(
    brokers=3,
    connections=12,
    window_s=600.0,
    pushes=600.0,
    oldest_s={"pushes": 0.4, "usage": 0.0},
    spool_bytes=9_000,
    spool_max_bytes=4.3e9,
    arrived_bytes=4.3e9 / 11 / 86_400 * 600,
)


def tile(name: str, state: ServiceState) -> Tile:
    (found,) = [one for one in tiles(state) if one.name == name]
    return found


def test_all_is_well() -> None:
    assert [(one.name, one.level, one.text, one.runbook) for one in tiles(WELL)] == [
        ("brokers and gateway", "ok", "3 brokers, 12 client connections", ""),
        ("pushes", "ok", "1.0 a second, none refused or dropped", ""),
        ("ingest lag", "ok", "oldest not stored: pushes 0.4 s, usage 0.0 s", ""),
        ("spool", "ok", "9.0 kB of 4.3 GB, 11 days at this rate", ""),
        ("store", "ok", "accepts rows", ""),
    ]


@pytest.mark.parametrize(
    ("name", "state", "level", "runbook"),
    [
        ("brokers and gateway", replace(WELL, left_out=5), "warn", "HeadroomUsageLeftOut"),
        ("brokers and gateway", replace(WELL, usage_lost=5), "critical", "HeadroomUsageLost"),
        (
            "brokers and gateway",
            replace(WELL, reason="network process 1 is gone"),
            "critical",
            "HeadroomRestarts",
        ),
        ("pushes", replace(WELL, over_budget=5), "warn", "HeadroomPayerOverBudget"),
        ("pushes", replace(WELL, dropped=5), "critical", "HeadroomRecordsDropped"),
        ("ingest lag", replace(WELL, oldest_s={"pushes": 31.0}), "critical", "HeadroomDataLate"),
        ("spool", replace(WELL, spool_bytes=4e9), "critical", "HeadroomSpoolFilling"),
        ("spool", replace(WELL, spool_bytes=1e9, arrived_bytes=6e8), "warn", "HeadroomSpoolFilling"),
        ("store", replace(WELL, store_up=False), "critical", "HeadroomStoreDown"),
        ("store", replace(WELL, reason="nothing is written for 60 s"), "critical", "HeadroomIngestStalled"),
    ],
)
def test_a_fault_has_a_level_and_a_runbook(name: str, state: ServiceState, level: str, runbook: str) -> None:
    found = tile(name, state)
    assert (found.level, found.runbook) == (level, runbook)
    assert (RUNBOOKS / f"{runbook}.md").is_file()
    assert all(one.level == "ok" for one in tiles(state) if one.name != name)


def test_before_anything_was_counted() -> None:
    assert tile("spool", ServiceState(spool_max_bytes=1e9)).text == "0 B of 1.0 GB, nothing arrives"
    assert tile("brokers and gateway", ServiceState()).text == "no cluster, 0 client connections"


def test_spans() -> None:
    shown = [span_text(span_s) for span_s in (0.0, 119.0, 120.0, 7_200.0, 172_800.0, 1e12)]
    assert shown == ["0 seconds", "119 seconds", "2 minutes", "2 hours", "2 days", "1000 days or more"]


def test_trends_have_the_last_hour_and_no_more() -> None:
    """Connections and spool are the highest of a minute, pushes and written records rates of it."""
    trends = Trends()
    for second in range(2 * 3600 + 1):
        minute = (second - 1) // 60
        peak = 500.0 if second % 60 == 30 else 0.0
        trends.note(float(second), Reading(minute, 3.0 * second, 0.5, peak, second * second / 2))
    found = trends.values()
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(TRENDS, 60)
    assert found["brokers and gateway"] == [float(minute) for minute in range(60, 120)]
    assert found["pushes"] == [3.0] * 60
    assert found["ingest lag"] == [0.5] * 60
    assert found["spool"] == [500.0] * 60
    # the mean rate of t * t / 2 over a minute is its middle
    assert found["store"] == [minute * 60.0 + 30 for minute in range(60, 120)]


def test_trends_begin_with_the_first_reading_and_a_count_that_began_anew_is_no_rate() -> None:
    trends = Trends()
    assert trends.values() == {}
    trends.note(7.0, Reading(connections=2, pushes=900))
    assert (trends.values()["brokers and gateway"], trends.values()["pushes"]) == ([2.0], [0.0])
    trends.note(17.0, Reading(connections=1, pushes=950))
    assert (trends.values()["brokers and gateway"], trends.values()["pushes"]) == ([2.0], [5.0])
    trends.note(80.0, Reading(pushes=10))
    assert trends.values()["pushes"] == [5.0, 0.0]


def test_each_tile_has_its_trend() -> None:
    rows = tile_rows(WELL, {"spool": [1.0, 2.0]})
    assert [row["trend"]["of"] for row in rows] == list(TRENDS.values())
    assert [row["trend"]["values"] for row in rows] == [[], [], [], [1.0, 2.0], []]
    assert {row["trend"]["step_s"] for row in rows} == {60.0}
