"""Long lists and clients that stopped: nothing is left out without a word. Names that are empty, times of one zone."""

import re
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from exporters.model import QuotaKey, QuotaLimit
from quota_metrics.amounts import of_limit_text, quota_word
from telemetry.ingest.arrow_tables import limits_table
from tests.headroom.web.conftest import HTTP, OF_ALICE, Watched, refreshed
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import now_ms, sample, write

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

RULES = 250
STOPPED_S = 3 * 3_600


@pytest.fixture(scope="module", autouse=True)
def more(clickhouse: RunningClickHouse) -> None:
    """Many rules; a client that stopped three hours ago; usage of a client without an id."""
    began_ms = now_ms()
    rules = [
        QuotaLimit("many", f"user-{n:03}", "", "", "producer_byte_rate", began_ms - 60_000, 1e6) for n in range(RULES)
    ]
    clickhouse.store.insert("quota_limits", limits_table(rules, began_ms), token="many-rules")
    rows = [
        sample("prod", at_ms, 50_000.0, client_id=name, bucket_client_id=name, **OF_ALICE)
        for name, before_s in (("stopped-app", STOPPED_S), ("", STOPPED_S + 60))
        for at_ms in range(began_ms // 1000 * 1000 - 1000 * before_s, 0, -1000)[:300]
    ]
    write(clickhouse.store, rows, "stopped")


def test_stopped_client_is_found_with_its_chart(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/?q=stopped")
    row = page.locator("table.seen tr", has_text="stopped-app")
    expect(row).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"))
    refreshed = f"{served}/?q=stopped"
    for _ in range(2):  # a refresh of the page, which does not have these rows, leaves them
        with page.expect_response(refreshed, timeout=60_000):
            pass
    expect(row).to_have_count(1)
    row.locator("a").click()
    expect(page.locator("main")).to_contain_text("Last seen 20")
    figure = page.locator("figure.chart")
    expect(figure).to_have_attribute("data-points", re.compile(r"^[1-9]"), timeout=60_000)
    assert figure.get_attribute("data-range") == "6h"  # the shortest that holds it


def test_chart_tells_of_restarts_and_changes(served: str, watched: Watched, clickhouse: RunningClickHouse) -> None:
    """Two instances of days ago, of which the second is a restart; the quota was set an hour ago."""
    for number, days in enumerate((3, 2)):
        clickhouse.store.query(
            """INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, first_seen,
                   last_seen, pushes)
               SELECT 'prod', toUUID(concat('00000000-0000-4000-8000-00000000000', {number:String})), 'stopped-app',
                   'alice', now64(3) - toIntervalDay({days:UInt8}), now64(3) - toIntervalDay({days:UInt8}), 1""",
            {"number": str(number), "days": days},
        )
    page = watched.page
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=stopped-app&range=7d")
    marks = page.get_by_role("list", name="Marks of the chart of producer_byte_rate").locator("li")
    expect(marks).to_have_count(2, timeout=60_000)
    change, restart = marks.all_inner_texts()
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"\u25b2 {moment} quota of user=alice, client-id=<default>: none to 100\.0 kB/s", change)
    assert re.fullmatch(rf"\u25c6 {moment} a new instance", restart)
    assert "\u25c6: a new instance of the client pushed" in page.locator("figure.chart figcaption").inner_text()
    page.get_by_role("button", name="Local time").click()
    expect(marks.first).to_contain_text("local time")
    page.get_by_role("button", name="Local time").click()


def test_range_is_in_the_link_and_zoom_by_pointer_or_keys_survives_refreshes(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=app-throttled&range=1h")
    figure = page.locator("figure.chart")
    expect(figure).to_have_attribute("data-shown", "1h", timeout=60_000)
    assert int(figure.get_attribute("data-muted") or 0) > 0
    page.get_by_role("link", name="24h").click()
    expect(figure).to_have_attribute("data-shown", "24h", timeout=60_000)
    assert "range=24h" in page.url
    page.get_by_role("link", name="15m").click()
    expect(figure).to_have_attribute("data-shown", "15m", timeout=60_000)

    def zoomed_to() -> list[int]:
        expect(figure).to_have_attribute("data-zoom", re.compile(r"^\d+ \d+$"))
        return [int(at) for at in (figure.get_attribute("data-zoom") or "").split()]

    page.get_by_role("group", name="Chart of producer_byte_rate").focus()
    page.keyboard.press("+")
    first = zoomed_to()
    assert 440 <= first[1] - first[0] <= 460  # half of the range
    page.keyboard.press("ArrowLeft")
    assert [before - after for before, after in zip(first, zoomed_to(), strict=True)] == [pytest.approx(112, abs=2)] * 2


def test_chart_without_usage_says_why(served: str, watched: Watched) -> None:
    page = watched.page
    page.route("**/api/v1/usage?*", lambda route: route.fulfill(status=503, json={"error": "the store is away"}))
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=stopped-app&range=15m")
    figure = page.locator("figure.chart")
    expect(figure).to_contain_text("The usage cannot be read now: the store is away.")
    page.unroute("**/api/v1/usage?*")
    expect(figure).to_contain_text("No usage was recorded in this time.", timeout=30_000)
    page.get_by_role("link", name="6h").click()
    expect(figure).to_have_attribute("data-points", re.compile("[1-9]"), timeout=60_000)
    assert "No usage" not in figure.inner_text()
    watched.faults[:] = [fault for fault in watched.faults if "503" not in fault]
    page.keyboard.press("Escape")
    expect(figure).not_to_have_attribute("data-zoom", re.compile("."))
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=5)
    page.mouse.up()
    expect(figure).to_have_attribute("data-zoom", re.compile(r"^\d+ \d+$"))
    zoom = figure.get_attribute("data-zoom")
    refreshed(page)
    assert figure.get_attribute("data-zoom") == zoom
    assert figure.locator("canvas").count() == 1


@pytest.mark.parametrize("range_", ["15m", "30d"])
def test_chart_of_any_range_has_at_most_a_thousand_points(served: str, range_: str) -> None:
    asked = {"cluster": "prod", "user": "alice", "client_id": "app-warn", "quota_key": "producer_byte_rate"}
    found = HTTP.get(f"{served}/api/v1/usage", params={**asked, "range": range_}).json()
    assert 0 < len(found["brokers"]["1"]["at"]) <= 1000
    assert round(found["brokers"]["1"]["rate"][1]) == 85_000
    assert HTTP.get(f"{served}/api/v1/usage", params={**asked, "range": "31d"}).status_code == 400


def test_client_without_an_id_has_a_page_of_its_own(served: str) -> None:
    asked = {"cluster": "prod", "user": "alice"}
    shown = HTTP.get(f"{served}/clients/detail", params={**asked, "client_id": ""})
    assert (shown.status_code, "(no client id)" in shown.text) == (200, True)
    assert "app-warn" not in shown.text
    assert "Last seen" in shown.text
    assert HTTP.get(f"{served}/api/v1/client", params={**asked, "client_id": ""}).json()["quotas"] == []
    absent = HTTP.get(f"{served}/clients/detail", params=asked)
    assert (absent.status_code, "client_id is missing" in absent.text) == (400, True)


def test_instances_have_one_spelling(served: str) -> None:
    """That of Kafka's tools, on the client's page as in the preview."""
    asked = {"cluster": "prod", "user": "alice", "client_id": "app-warn"}
    page = HTTP.get(f"{served}/clients/detail", params=asked).text
    preview = HTTP.get(f"{served}/subscriptions/preview", params={"metrics": "*"}).text
    (shown,) = re.findall(r">([\w-]{22})</code>", page)
    assert f"<code>{shown}</code>" in preview


def test_lists_have_pages_and_a_search(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/quotas?cluster=many")
    assert page.locator("table.rules tbody tr").count() == 100
    assert page.locator("main table").count() == page.locator("[data-live] table").count()
    assert page.locator("#rules .pager").inner_text().startswith("1 to 100 of 250")
    page.get_by_role("link", name="next").click()
    assert page.locator("#rules .pager").inner_text().startswith("101 to 200 of 250")
    assert "user-100" in page.locator("table.rules").inner_text()
    page.goto(f"{served}/quotas?cluster=many&limit=250")
    assert page.locator("table.rules tbody tr").count() == 250
    page.get_by_label("Search").fill("user-24")
    page.get_by_role("button", name="Search").click()
    assert page.locator("table.rules tbody tr").count() == 10
    assert page.locator("#rules .pager").inner_text() == "1 to 10 of 10"
    page.goto(f"{served}/?limit=4")
    assert page.locator("table.clients tbody tr").count() == 4
    assert page.locator("#clients .pager").inner_text().startswith("1 to 4 of 6")
    page.get_by_role("link", name="next").click()
    assert page.locator("#clients .pager").inner_text().startswith("5 to 6 of 6")
    page.goto(f"{served}/subscriptions?limit=1")
    assert page.locator("#subscriptions .pager").inner_text().startswith("1 to 1 of 2")
    assert page.locator("#pushing .pager").inner_text().startswith("1 to 1 of 6")
    page.goto(f"{served}/subscriptions?q=org.apache")
    assert page.locator("table.subscriptions tbody tr").count() == 1


def test_search_finds_rules_software_and_addresses(served: str) -> None:
    def found(text: str) -> set[str]:
        rows = HTTP.get(f"{served}/api/v1/headroom", params={"q": text, "cluster": "prod"}).json()
        return {row["client_id"] for row in rows}

    assert "app-ok" in found("client-id=<default>")
    assert "app-warn" in found("10.0.0.1")
    assert found("10.0.0.2") == set()


def test_groups_have_totals(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.get_by_label("Group by").select_option("user")
    row = page.locator("table.groups tr", has_text="alice")
    expect(row).to_be_visible(timeout=60_000)
    assert row.locator("td").nth(3).inner_text() == "5"
    assert row.locator("td").nth(6).inner_text() == "374.0 kB/s"
    row.locator("a").click()
    assert page.locator("table.clients tbody tr").count() == 5


def test_times_are_of_one_zone_at_a_time(served: str, browser: Browser) -> None:
    page = browser.new_page(timezone_id="America/New_York")
    page.goto(f"{served}/quotas")
    times = page.locator("table.rules time")
    utc = times.first.inner_text()
    assert page.locator("table.rules .zone").inner_text() == "UTC"
    for place, at_s in ((1, 1_768_460_400), (2, 1_784_098_800)):  # 07:00 UTC in January and in July
        times.nth(place).evaluate("(time, at) => { time.dataset.at = at }", at_s)
    page.get_by_role("button", name="Local time").click()
    winter, summer = "2026-01-15 02:00:00", "2026-07-15 03:00:00"
    is_winter = page.locator("table.rules .zone").inner_text() == "EST"
    expected = [winter, f"{summer} EDT"] if is_winter else [f"{winter} EST", summer]
    assert times.all_inner_texts()[1:3] == expected
    assert times.first.inner_text() != utc
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=app-warn")
    page.wait_for_selector("figure[data-points]", timeout=60_000)
    legends = page.locator(".u-legend")
    expect(legends).to_have_count(2)  # of the usage and of the forecast
    assert "UTC" not in "".join(legends.all_inner_texts())  # the charts follow
    page.get_by_role("button", name="Local time").click()
    expect(legends).to_contain_text(["time (UTC)", "time (UTC)"])
    page.close()


# Of 29 characters: those that end beyond the text of their cell.
_NAMED_LONG = """names => {
    const links = [...document.querySelectorAll("table.clients .who a[href^='/clients/detail']")];
    links.forEach((link, n) => { link.textContent = names[n % names.length]; });
    const isCut = (link) => {
        const cell = link.closest("td"), shown = cell.getBoundingClientRect(), box = link.getBoundingClientRect();
        return box.right > shown.right - parseFloat(getComputedStyle(cell).paddingRight) || box.bottom > shown.bottom;
    };
    return links.filter(isCut).map((link) => link.textContent);
}"""
_CUT = """cells => cells.filter(cell => !cell.matches('.who, .why') && cell.scrollWidth > cell.clientWidth + 1)
    .map(cell => cell.textContent)"""
_LONG_NAMES = ["payment-reconciliation-worker", "warehouse_inventory.consumer1", "CustomerProfileEnricherMain01"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1024, 768), (1280, 800), (1440, 900)])
def test_names_of_under_thirty_characters_numbers_and_levels_are_whole(
    served: str, browser: Browser, width: int, height: int, theme: Literal["light", "dark"]
) -> None:
    """And twenty-five clients fit a screen of 1440 x 900."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.goto(f"{served}/")
    assert page.evaluate(_NAMED_LONG, _LONG_NAMES) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    first = page.locator("table.clients tbody tr").first.bounding_box()
    assert first is not None
    assert width < 1440 or first["y"] + 25 * first["height"] <= height
    for quota_key in QuotaKey:  # in cards nothing is beside a number
        rates = (987_600.0, 1_200_000.0) if quota_key.endswith("byte_rate") else (98.7, 100.0)
        for place, text in {3: quota_word(quota_key), 5: of_limit_text(*rates, quota_key), 6: "59.9 s"}.items():
            cell = page.locator(f"table.clients td:nth-child({place})").last
            cell.evaluate("(cell, text) => cell.textContent = text", text)
        assert width < 1024 or page.locator("table.clients td").evaluate_all(_CUT) == []
    page.close()


def test_row_leads_to_another_limit_and_to_who_shares_it(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    row = page.locator("table.clients tbody tr", has_text="app-warn")
    command = row.get_by_role("button", name="copy").get_attribute("data-copy") or ""
    assert command.startswith("headroom quotas what-if --user=alice --defaults=client-id --add=producer_byte_rate=")
    reasons = page.locator("table.clients .why").evaluate_all(
        "cells => cells.map(cell => (cell.querySelector('summary, span') || cell).textContent.trim().length)"
    )
    assert max(reasons) <= 80
    row.get_by_role("link", name="metrics").click()
    page.wait_for_selector("figure[data-points]", timeout=60_000)
    bar, heading = (page.locator(name).bounding_box() for name in (".ranges", "#metrics h2"))
    assert bar and heading and bar["y"] + bar["height"] <= heading["y"] < 700
    page.goto(f"{served}/")
    row.get_by_role("link", name="shared").click()
    assert page.locator("table.clients tbody tr").count() == 6
    page.locator("table.clients tbody tr", has_text="app-warn").get_by_role("link", name="what if").click()
    assert page.get_by_label("User").input_value() == "alice"
    assert page.get_by_label("Client id").input_value() == "<default>"
    assert int(page.get_by_label("New limit").input_value()) >= 125_000
