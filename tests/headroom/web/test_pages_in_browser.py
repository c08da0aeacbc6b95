"""The pages in a real Chromium: loading, filtering, refreshing and plotting."""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.headroom.web.conftest import HOSTILE, HTTP, Watched

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

MAX_FIRST_VIEW_BYTES = 100_000


def names(page: Page) -> list[str]:
    return page.locator("table.clients tbody td.who div > a").all_inner_texts()


def test_overview_is_sorted_by_severity_or_a_column_and_filters_work(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    assert names(page)[:2] == ["app-throttled", "app-critical"]
    levels = page.locator("table.clients tbody .level").all_inner_texts()
    assert levels == ["throttled", "critical", "warn", "warn", "watch", "ok"]
    for first in ("app-throttled", "app-ok"):
        page.locator("thead a", has_text="Usage").click()
        assert names(page)[0] == first
    page.locator(".levels a", has_text="critical").click()
    assert names(page) == ["app-critical"]
    page.locator(".levels a", has_text="all").click()
    page.wait_for_load_state()  # scripts that listen are deferred
    page.get_by_label("Search").fill("app-w")
    expect(page.locator("table.clients tbody tr")).to_have_count(2, timeout=30_000)
    assert sorted(names(page)) == ["app-warn", "app-watch"]
    assert "q=app-w" in page.url  # a link keeps the state
    expect(page.get_by_role("status")).to_have_text("1 to 2 of 2")  # for screen readers
    page.reload()
    assert sorted(names(page)) == ["app-warn", "app-watch"]
    with page.expect_event("load"):
        page.go_back()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Search").fill("x" * 4097)
    for _ in range(2):  # no rows of another question, and the question stays
        expect(page.get_by_role("alert")).to_have_text("q is longer than 4096 characters")
        page.get_by_role("link", name="Try again").click()
    watched.faults[:] = [fault for fault in watched.faults if " 400 " not in fault]


def test_client_page_shows_the_chart_and_the_forecast(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.locator("table.clients a", has_text="app-warn").click()
    page.wait_for_selector("figure.chart[data-points]")
    assert int(page.locator("figure.chart").get_attribute("data-points") or 0) > 200
    figure = page.locator("figure.fan")
    expect(figure.locator("canvas")).to_be_visible()
    assert re.findall(r"median|10 %|90 %|limit", figure.locator(".u-legend").inner_text()) == [
        "10 %", "median", "90 %", "limit",
    ]  # fmt: skip
    over = figure.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    over.hover(position={"x": box["width"] - 2, "y": 50})
    expect(figure.locator(".u-legend")).to_contain_text("median120.0 %")  # of the last step
    assert HTTP.get(page.url).text.count("<polygon") == 1  # without scripts
    assert "limit reached at 20" in page.locator("main").inner_text()
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=app-ok")
    assert page.locator("figure.fan").count() == 0
    assert "none: headroom job throttle-forecast" in page.locator("main").inner_text()


def test_pages_say_what_a_client_feels(served: str) -> None:
    """The overview only of those that suffer, the client's page of each."""
    overview = HTTP.get(f"{served}/", params={"q": "app-"}).text
    assert re.findall(r'class="felt" title="([^"]*)">([^<]*)<', overview) == [
        ("records waited 2.5 s in the producer", "client delayed")
    ]
    for name, felt in (("warn", "delayed: records waited 2.5 s in the producer"), ("ok", "unknown: no telemetry")):
        asked = {"cluster": "prod", "user": "alice", "client_id": f"app-{name}"}
        assert f"By its own telemetry: {felt}" in HTTP.get(f"{served}/clients/detail", params=asked).text


def test_first_page_load_is_small(served: str) -> None:
    """Counts transferred bytes of HTML, styles and scripts."""
    total = 0
    with httpx.Client(headers={"accept-encoding": "gzip"}, timeout=60) as client:
        for path in ("/", "/static/headroom.css", "/static/vendor/htmx-2.0.11.min.js", "/static/icon.svg"):
            with client.stream("GET", served + path) as answer:
                total += sum(len(chunk) for chunk in answer.iter_raw())
    assert total < MAX_FIRST_VIEW_BYTES


def test_api_has_the_promised_names(served: str) -> None:
    rows = HTTP.get(f"{served}/api/v1/headroom", params={"level": "warn,critical", "cluster": "prod"}).json()
    assert {row["client_id"] for row in rows} == {"app-warn", "app-critical", HOSTILE}
    promised = [
        "cluster",
        "quota_key",
        "user",
        "client_id",
        "broker_id",
        "limit",
        "usage",
        "utilization",
        "level",
        "reason",
    ]
    assert {*promised, "software_name", "software_version", "instances"} <= rows[0].keys()
    (one,) = HTTP.get(f"{served}/api/v1/headroom", params={"client_id": "app-ok"}).json()
    assert (one["level"], one["limit"], round(one["utilization"], 3)) == ("ok", 100_000, 0.2)
    (rule,) = HTTP.get(f"{served}/api/v1/quotas", params={"cluster": "prod"}).json()
    assert (rule["entity"], rule["value"]) == ("user=alice, client-id=<default>", 100_000)
    assert len(HTTP.get(f"{served}/api/v1/quota-changes", params={"cluster": "prod"}).json()) == 1
    assert HTTP.get(f"{served}/api/v1/status").json()["ready"] is True


@pytest.mark.parametrize("query", ["level=bad", "sort=rate;drop", "order=up", "limit=-1", "limit=99999999", "source=x"])
def test_invalid_parameters_are_named_in_the_error(served: str, query: str) -> None:
    answer = HTTP.get(f"{served}/api/v1/headroom?{query}")
    assert (answer.status_code, query.partition("=")[0] in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "value", ["'", "\\", "\t", "\n", "a'); DROP TABLE headroom.points; --", "{x:String}", "%", "é"]
)
def test_special_characters_are_searched_literally(served: str, value: str) -> None:
    for name in ("client_id", "q"):
        assert HTTP.get(f"{served}/api/v1/headroom", params={name: value}).json() == []


def test_only_read_requests_are_allowed(served: str) -> None:
    assert HTTP.post(f"{served}/api/v1/headroom").status_code == 405
    assert HTTP.delete(f"{served}/quotas").status_code == 405
    assert HTTP.get(f"{served}/static/../../settings.py").status_code == 404
