"""The pages in a real Chromium load, filter, refresh and plot; names of clients stay text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from exporters.clickhouse.store import Store
from exporters.model import QuotaLimit, UsageSample
from telemetry.ingest.arrow_tables import limits_table, usage_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'
MAX_FIRST_VIEW_BYTES = 100_000
HTTP = httpx.Client(timeout=60)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write_usage(store: Store) -> None:
    """Clients at every level, one of them with a hostile name."""
    end_ms = now_ms() // 1000 * 1000
    shares = {
        "app-ok": 0.2,
        "app-watch": 0.7,
        "app-warn": 0.85,
        "app-critical": 0.99,
        "app-throttled": 1.0,
        HOSTILE: 0.9,
    }
    for number, (name, share) in enumerate(shares.items()):
        throttle_ms = 400.0 if name == "app-throttled" else 0.0
        rows = [
            UsageSample(
                "prod", "producer_byte_rate", end_ms - ago * 1000, HOSTILE if name == HOSTILE else "alice", name, "",
                1 + number % 2, int(share * 1e5), share * 1e5, throttle_ms * (ago % 5 == 0),
                0, "gateway", "gw", 1000, 1e5, True, "user=alice, client-id=<default>", "alice", name,
                muted_ms=int(throttle_ms) * (ago % 5 == 0),
            )
            for ago in range(-900, 300)  # the rows of a quarter of an hour to come, too: tests take their time
        ]  # fmt: skip
        store.insert("quota_usage", usage_table(rows, end_ms), token=f"usage-{number}")
    limits = [QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", end_ms - 10_000, 1e5)]
    store.insert("quota_limits", limits_table(limits, end_ms), token="limits")


@pytest.fixture(scope="module")
def served(clickhouse: RunningClickHouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Headroom whose store has usage of clients at every level: its HTTP address."""
    write_usage(clickhouse.store)
    environment = pytest.MonkeyPatch()
    environment.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)
    try:
        with Served(tmp_path_factory.mktemp("web"), "--clickhouse", clickhouse.writer.url) as running:
            yield f"http://{running.http}"
    finally:
        environment.undo()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "this test needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


class Watched:
    """A page and its errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("requestfailed", lambda request: self.faults.append(f"failed {request.url}"))


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = Watched(context.new_page())
    yield found
    context.close()
    assert [fault for fault in found.faults if "ERR_ABORTED" not in fault] == []


@pytest.fixture(scope="session")
def shots(request: pytest.FixtureRequest) -> Path:
    directory = request.config.rootpath / "build" / "screenshots"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def names(page: Page) -> list[str]:
    return page.locator("table.clients tbody tr td:nth-child(2) a").all_inner_texts()


def test_the_worst_come_first_and_filters_work(served: str, watched: Watched, shots: Path) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.screenshot(path=shots / "overview.png", full_page=True)
    assert names(page)[:2] == ["app-throttled", "app-critical"]
    levels = page.locator("table.clients tbody .level").all_inner_texts()
    assert levels == ["throttled", "critical", "warn", "warn", "watch", "ok"]
    page.locator(".levels a", has_text="critical").click()
    assert names(page) == ["app-critical"]
    page.locator(".levels a", has_text="all").click()
    page.get_by_label("Search").fill("app-w")
    expect(page.locator("table.clients tbody tr")).to_have_count(2, timeout=30_000)
    assert sorted(names(page)) == ["app-warn", "app-watch"]
    assert "q=app-w" in page.url  # a link keeps the state
    page.reload()
    assert sorted(names(page)) == ["app-warn", "app-watch"]


def test_the_list_refreshes_itself_and_keeps_the_keyboards_place(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    with page.expect_response(lambda response: response.request.headers.get("hx-request") == "true", timeout=60_000):
        pass
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_columns_sort(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.locator("thead a", has_text="Usage").click()
    assert names(page)[0] == "app-throttled"
    page.locator("thead a", has_text="Usage").click()
    assert names(page)[0] == "app-ok"


def test_a_clients_chart_is_drawn(served: str, watched: Watched, shots: Path) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.locator("table.clients a", has_text="app-throttled").click()
    page.wait_for_selector("figure.chart canvas")
    assert int(page.locator("figure.chart").get_attribute("data-points") or 0) > 200
    drawn = page.evaluate(
        "(() => { const c = document.querySelector('figure.chart canvas');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0) })()"
    )
    assert drawn
    page.screenshot(path=shots / "client.png", full_page=True)


@pytest.mark.parametrize("path", ["", "quotas", "subscriptions", "status", "clients/detail"])
def test_hostile_names_stay_text_on_every_page(served: str, watched: Watched, shots: Path, path: str) -> None:
    page = watched.page
    target = f"{served}/{path}"
    if path == "clients/detail":
        target = str(httpx.URL(target, params={"cluster": "prod", "user": HOSTILE, "client_id": HOSTILE}))
    page.goto(target)
    assert page.locator("main img, main script").count() == 0
    page.screenshot(path=shots / f"{path.replace('/', '-') or 'hostile'}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_phone_needs_no_sideways_scrolling(served: str, browser: Browser, shots: Path, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{served}/")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=shots / f"phone-{scheme}.png", full_page=True)
    context.close()


def test_the_first_view_is_small(served: str) -> None:
    """As transferred: html, styles and script."""
    total = 0
    with httpx.Client(headers={"accept-encoding": "gzip"}, timeout=60) as client:
        for path in ("/", "/static/headroom.css", "/static/vendor/htmx-2.0.11.min.js", "/static/icon.svg"):
            with client.stream("GET", served + path) as answer:
                total += sum(len(chunk) for chunk in answer.iter_raw())
    assert total < MAX_FIRST_VIEW_BYTES


def test_the_api_has_the_names_of_the_view(served: str) -> None:
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
def test_parameters_that_mean_nothing_are_named(served: str, query: str) -> None:
    answer = HTTP.get(f"{served}/api/v1/headroom?{query}")
    assert (answer.status_code, query.partition("=")[0] in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "value", ["'", "\\", "\t", "\n", "a'); DROP TABLE headroom.points; --", "{x:String}", "%", "é"]
)
def test_odd_names_are_looked_for_as_they_are(served: str, value: str) -> None:
    for name in ("client_id", "q"):
        assert HTTP.get(f"{served}/api/v1/headroom", params={name: value}).json() == []


def test_only_reading_is_allowed(served: str) -> None:
    assert HTTP.post(f"{served}/api/v1/headroom").status_code == 405
    assert HTTP.delete(f"{served}/quotas").status_code == 405
    assert HTTP.get(f"{served}/", headers={"host": "evil.example"}).status_code == 421
    assert HTTP.get(f"{served}/static/../../settings.py").status_code == 404
