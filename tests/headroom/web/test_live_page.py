"""A page that stays open: it says how old its numbers are, and changes them without disturbing its reader."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.headroom.web.conftest import HTTP, Watched, refreshed
from tests.headroom.web.pictures import complaints
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms, sample, write
from tests.kit.serving import Served, config_file, eventually

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

CLOCK = r"\d\d:\d\d:\d\d UTC"
ROWS = "table.clients tbody tr"


@contextmanager
def stopped(clickhouse: RunningClickHouse) -> Iterator[None]:
    """The server takes connections and answers nothing."""
    group = os.getpgid(clickhouse.process.pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGCONT)


def test_open_page_says_that_the_store_stands_still(
    served: str, clickhouse: RunningClickHouse, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{served}/")
    line = page.locator("#freshness")
    expect(line).to_have_text(re.compile(rf"live, {CLOCK}, \d+ (s|min) ago"), timeout=30_000)
    rows = page.locator(ROWS).count()
    with stopped(clickhouse):
        said = rf"the store does not answer since {CLOCK}, shown is {CLOCK}"
        expect(line).to_have_text(re.compile(said), timeout=10_000)
        expect(line).to_have_class("away")
        assert page.locator(ROWS).count() == rows
    expect(line).to_have_text(re.compile("live, "), timeout=30_000)
    watched.faults[:] = [fault for fault in watched.faults if "503" not in fault]


def test_fresh_page_says_within_two_seconds_why_the_store_does_not_answer(
    served: str, clickhouse: RunningClickHouse
) -> None:
    HTTP.get(f"{served}/")
    with stopped(clickhouse):
        for path in ("/?q=another", "/clients/detail?client_id=app-ok", "/quotas", "/subscriptions"):
            began = time.monotonic()
            answer = HTTP.get(served + path)
            took_s = time.monotonic() - began  # 2 s on a machine that is not busy
            assert (answer.status_code, took_s < 10.0) == (503, True), (path, took_s)
            assert f"cannot reach http://{clickhouse.host}:{clickhouse.port}: no answer in time" in answer.text
            assert 'href="/status#store"' in answer.text
            assert 'href="/runbooks/HeadroomStoreDown"' in answer.text
        began = time.monotonic()
        assert HTTP.get(f"{served}/status").status_code == 200
        assert time.monotonic() - began < 2.0
    assert "ClickHouse takes no rows." in HTTP.get(f"{served}/runbooks/HeadroomStoreDown").text
    eventually(lambda: HTTP.get(f"{served}/").status_code, lambda code: code == 200)


@pytest.mark.parametrize("path", ["/runbooks/None", "/runbooks/..%2f..%2fREADME", "/runbooks/HeadroomDown.md"])
def test_other_files_are_no_runbooks(served: str, path: str) -> None:
    assert HTTP.get(served + path).status_code == 404


def test_last_minute_is_shown_with_its_age_however_late_the_store_is(tmp_path: Path, watched: Watched) -> None:
    end_ms = now_ms() // 60_000 * 60_000 - 600_000
    late = {"client_id": "late-app", "limit": 1e5, "bucket_user": "alice"}
    rows = [sample("prod", end_ms - ago * 1000, 85_000.0, **late) for ago in range(1, 61)]
    with running_clickhouse(tmp_path / "clickhouse") as own:
        write(own.store, rows, "lagging")
        with Served(tmp_path, environment=own.environment) as served:
            address = f"http://{served.http}"
            eventually(lambda: HTTP.get(f"{address}/api/v1/headroom").json(), bool)
            watched.page.goto(f"{address}/")
            assert "late-app" in watched.page.locator(ROWS).inner_text()
            line = watched.page.locator("#freshness")
            expect(line).to_have_text(re.compile(rf"levels are old: {CLOCK}, 1\d min ago"), timeout=30_000)
            found = HTTP.get(f"{address}/api/v1/freshness").json()
            assert (found["state"], 600 <= found["age_s"] < 1000) == ("late", True)
            watched.page.goto("about:blank")


def test_refresh_keeps_nodes_focus_and_selection(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    link = page.locator(f"{ROWS} a", has_text="app-warn")
    link.focus()
    page.evaluate(f"window.kept = [...document.querySelectorAll('{ROWS}')]")
    page.evaluate(
        """() => { const range = document.createRange(), to = document.querySelector('table.clients .who a');
                   range.selectNodeContents(to); getSelection().removeAllRanges(); getSelection().addRange(range) }"""
    )
    selected = page.evaluate("getSelection().toString()")
    for _ in range(2):
        refreshed(page)
    assert page.evaluate("document.activeElement.textContent") == "app-warn"
    assert page.evaluate("getSelection().toString()") == selected != ""
    assert page.evaluate("kept.length > 3 && kept.every(row => row.isConnected)")


def open_and_sort_the_other_way(page: Page, served: str) -> list[str]:
    """The names before. Each refresh sorts the other way round, and has another level count."""

    def reversed_order(route: Route) -> None:
        if route.request.headers.get("x-headroom-live"):
            answer = route.fetch(url=f"{served}/?sort=level&order=asc")
            route.fulfill(response=answer, body=answer.text().replace("all <b>6</b>", "all <b>600</b>"))
        else:
            route.continue_()

    page.goto(f"{served}/")
    page.route(f"{served}/", reversed_order)
    return page.locator(f"{ROWS} .who a").all_inner_texts()


def test_rows_move_only_when_the_pointer_is_elsewhere(served: str, watched: Watched) -> None:
    page = watched.page
    before = open_and_sort_the_other_way(page, served)
    waiting = page.get_by_text("The list has changed")
    page.locator(f"{ROWS} summary").first.click()
    refreshed(page)
    assert page.locator(f"{ROWS} .who a").all_inner_texts() == before
    expect(waiting).to_be_visible()
    expect(page.locator(".levels a").first).to_contain_text("600")  # what does not move is changed
    page.mouse.move(5, 5)
    refreshed(page)
    assert page.locator(f"{ROWS} .who a").all_inner_texts()[0] == "app-ok"
    expect(waiting).to_be_hidden()


def test_rows_move_again_after_a_tap(served: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    open_and_sort_the_other_way(page, served)
    page.locator(f"{ROWS} summary").first.tap()
    expect(page.locator(f"{ROWS} .who a").first).to_have_text("app-ok", timeout=30_000)
    page.close()


@pytest.mark.parametrize(("path", "region"), [("/?q=app", "#clients"), ("/quotas", "#recorded")])
def test_what_the_pointer_is_on_keeps_its_words(served: str, watched: Watched, path: str, region: str) -> None:
    """Where some parts have ids and some have none."""
    page = watched.page
    page.goto(served + path, wait_until="networkidle")
    page.locator(f"{region} table").first.hover()
    words = [re.sub(r"\d", "", page.locator(region).inner_text())]
    refreshed(page)
    words.append(re.sub(r"\d", "", page.locator(region).inner_text()))
    assert words[0] == words[1]


def test_rows_that_could_not_be_refreshed_are_not_live(served: str, watched: Watched) -> None:
    """The server answers for its line and not for the page."""
    page = watched.page
    page.goto(f"{served}/")
    line = page.locator("#freshness")
    refreshed(page)
    expect(line).to_have_text(re.compile("live, "))
    page.route(f"{served}/", lambda route: route.fulfill(status=503, body="<section id=clients data-live></section>"))
    expect(line).to_have_text(re.compile(rf"this page could not be refreshed, shown is {CLOCK}$"), timeout=20_000)
    expect(line).to_have_class("late")
    sentence = line.inner_text()
    assert page.locator(ROWS).count() > 0
    with page.expect_response(f"{served}/", timeout=20_000):
        pass
    assert line.inner_text() == sentence
    page.unroute(f"{served}/")
    refreshed(page)
    expect(line).to_have_text(re.compile("live, "))
    watched.faults[:] = [fault for fault in watched.faults if "503" not in fault]


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [(0, "", "this page has slept"), (401, "", "logged out"), (200, "away", "away"), (200, "late", "late")],
)
def test_page_that_slept_says_its_age(served: str, watched: Watched, status: int, state: str, said: str) -> None:
    page = watched.page
    page.clock.install()
    page.goto(f"{served}/")
    refreshed(page)
    if state == "late":
        page.get_by_role("button", name="Pause").click()
    body = f'<p id="freshness" data-state="{state}" data-shown="9999999999"><b>{state}</b></p>'
    page.route("**/freshness", lambda route: status and route.fulfill(status=status, body=body))
    page.clock.fast_forward("02:00:00")
    expect(page.get_by_role("status")).to_have_text(re.compile(said))  # for screen readers
    age_s = page.evaluate("Date.now() / 1000 - document.querySelector('#freshness time:last-of-type').dataset.at")
    assert 7_000 < age_s < 8_000
    watched.faults[:] = [fault for fault in watched.faults if "401" not in fault]


def test_pause_stops_changes_and_says_so(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#freshness")).to_have_text(re.compile(rf"paused, shown is {CLOCK}"), timeout=20_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(2):
        with page.expect_request("**/freshness", timeout=20_000):
            pass
    assert [url for url in asked if not url.endswith("/freshness")] == []
    page.get_by_role("button", name="Pause").click()
    refreshed(page)


@pytest.mark.usefixtures("serving")
def test_own_page_is_changed_where_somebody_reads_it(
    tmp_path: Path, clickhouse: RunningClickHouse, browser: Browser
) -> None:
    """A reload would begin anew for a screen reader, and lose the focus (WCAG 2.2.1)."""
    page = browser.new_page(http_credentials={"username": "me", "password": "a" * 20}, bypass_csp=True)
    page.clock.install()
    web = {"token": "o" * 20, "tokens": [{"token": "a" * 20, "user": "alice"}]}
    with Served(tmp_path, *config_file(tmp_path, web=web), environment=clickhouse.environment) as served:
        address = f"http://{served.http}/me"
        eventually(lambda: HTTP.get(address, auth=("me", "a" * 20)).text, lambda text: "app-warn" in text)
        page.goto(address)
        assert complaints(page) == []
        clients = page.get_by_role("region", name="Clients")
        clients.focus()
        page.route("**/me", lambda route: route.fulfill(body=route.fetch().text().replace("app-warn", "app-new")))
        page.clock.fast_forward("02:00")
        expect(clients).to_contain_text("app-new")
        expect(clients).to_be_focused()
        page.route("**/me", lambda route: route.fulfill(status=503))
        page.clock.fast_forward("02:00")
        expect(page.get_by_role("status")).to_have_text(re.compile(f"this page could not be refreshed since {CLOCK}"))
