"""The forms of the quota and subscription pages: with JavaScript, without it, and what they refuse."""

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect

from headroom.web.tiles import TRENDS
from tests.headroom.web.conftest import HOSTILE, HTTP, Watched

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

LINE = (
    "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type users --entity-name alice"
    " --entity-type clients --entity-default --add-config producer_byte_rate=50000"
)
ENTITY = {"cluster": "prod", "user": "alice", "client_id": "<default>"}
STRICTER = {**ENTITY, "quota_key": "producer_byte_rate", "value": "50000", "since": "15m"}


def test_what_if_form_shows_verdicts_and_the_command(served: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{served}/quotas")
    page.get_by_label("User").fill("alice")
    page.get_by_label("Client id").fill("<default>")
    page.get_by_label("New limit").fill("50000")
    page.get_by_label("In the last").select_option("15m")
    page.get_by_role("button", name="What if?").click()
    expect(page.locator("#what-if-answer pre code")).to_have_text(LINE, timeout=90_000)
    assert page.locator("h1").inner_text() == "Quotas"  # htmx put the answer into the page
    with page.expect_request(
        lambda request: "x-headroom-live" in request.headers and "fresh" not in request.url
    ) as kept:
        pass
    assert kept.value.url == f"{served}/quotas"  # its rules are refreshed, and the question is not asked again
    rows = [row.split("\t") for row in page.locator("#what-if-answer tbody tr").all_inner_texts()]
    verdicts = {client_id: verdict for verdict, client_id, *_ in rows}
    when = rf"over the last 15m before {datetime.now(UTC):%Y}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(when, page.locator("#what-if-answer").inner_text())
    assert "headroom quotas what-if --user=alice" in page.locator("#what-if-answer .command").inner_text()
    assert verdicts["app-critical"] == "newly throttled"
    assert verdicts["app-ok"] == "unchanged"
    assert HOSTILE not in verdicts


def test_forms_work_without_javascript(served: str, browser: Browser) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.set_default_timeout(90_000)
    page.goto(f"{served}/quotas")
    page.get_by_label("User").fill("alice")
    page.get_by_label("New limit").fill("1x")
    page.locator("#what-if input[name=value]").evaluate("field => field.removeAttribute('pattern')")
    page.get_by_role("button", name="What if?").click()
    assert "value must be a whole number" in page.get_by_role("alert").inner_text()
    page.goto(f"{served}/subscriptions")
    page.get_by_label("Match").fill("client_id=app-.*")
    page.get_by_label("Metrics").fill("org.apache.kafka.")
    page.get_by_role("button", name="Preview").click()
    assert "1 of 2 client instances" in page.locator("#preview").inner_text()
    assert "org.apache.kafka.app-warn.throttle" in page.locator("#preview").inner_text()
    page.close()


def test_status_shows_the_last_hour_without_javascript(served: str, browser: Browser) -> None:
    page = browser.new_page(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page.goto(f"{served}/status")
    assert page.locator("main table").count() == page.locator("[data-live] table").count() == 2
    for name, of in TRENDS.items():
        drawn = page.locator(f"#{name.replace(' ', '-')}").get_by_role("img", name=f"{of} in the last hour")
        points = [point.split(",") for point in (drawn.locator("polyline").get_attribute("points") or "").split()]
        assert [float(x) for x, _ in points[-2:]] == [354.0, 360.0]  # the newest minute is at the right edge
        assert all(0 <= float(y) <= 24 for _, y in points)
        box = drawn.bounding_box()
        assert box is not None
        assert 0 < box["x"] < box["x"] + box["width"] < 390
    page.close()


def test_api_returns_the_same_results(served: str) -> None:
    found = HTTP.get(f"{served}/api/v1/what-if", params=STRICTER).json()
    assert found["command"] == LINE
    assert (found["counts"]["newly throttled"], found["counts"]["still throttled"]) == (3, 1)
    clients = {client["client_id"]: client for client in found["clients"]}
    assert clients.keys() == {"app-throttled", "app-critical", "app-warn", "app-watch", "app-ok"}
    assert 0.4 <= clients["app-ok"]["after"]["peak"] < 0.5  # a broker may measure a tenth more than the mean
    assert clients["app-watch"]["after"]["peak"] > 1  # of what a throttled client sends
    assert (clients["app-ok"]["after"]["throttled_s"], clients["app-throttled"]["before"]["limit"]) == (0, 1e5)
    assert 60 <= clients["app-watch"]["after"]["throttled_s"] <= 900
    assert (found["covers"]["clients"], found["covers"]["of_clients"], found["covers"]["bytes_share"]) == (5, 5, 1)
    preview = HTTP.get(f"{served}/api/v1/subscription-preview", params={"match": "client_id=app-.*"}).json()
    assert (preview["known"], preview["matching"], preview["metrics"]) == (2, 1, [])
    names = {"cluster": "prod", "user": "alice", "client_id": "app-warn"}
    (quota,) = HTTP.get(f"{served}/api/v1/client", params=names).json()["quotas"]
    assert (len(quota["forecast"]["p50"]), quota["forecast"]["confidence"]) == (36, 0.7)


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("what-if", {"value": "1"}, "Invalid empty client quota entity"),
        ("what-if", {"user": "a", "value": "0"}, "Quota producer_byte_rate must be greater than 0"),
        ("what-if", {"user": "a", "value": "-5"}, "value must be a whole number"),
        ("what-if", {"user": "a", "value": "1e9"}, "value must be a whole number"),
        ("what-if", {"user": "a", "value": "9" * 16}, "value must be a whole number"),
        ("what-if", {"user": "a", "quota_key": "request_percentage"}, "quota_key must be one of"),
        ("what-if", {"user": "a", "since": "99d"}, "since must be one of"),
        ("what-if", {"user": "a" * 5000}, "user is longer than 4096 characters"),
        ("what-if", {"user": "a\0"}, "must not contain NUL"),
        (
            "what-if",
            {"user": "--url=http://evil.example", "value": "9", "cluster": "no such"},
            "no usage of cluster 'no such'",
        ),
        ("subscription-preview", {"match": "client_id=(a+)+$("}, "Illegal client matching pattern"),
        ("subscription-preview", {"match": "client_id=(a)\\1"}, "Illegal client matching pattern"),
        ("subscription-preview", {"match": "password=x"}, "Illegal client matching pattern"),
        ("subscription-preview", {"interval_ms": "5"}, "interval.ms"),
        ("subscription-preview", {"interval_ms": "x"}, "interval.ms"),
        ("subscription-preview", {"metrics": "a,,b"}, "must not be empty"),
    ],
)
def test_what_the_forms_may_not_send_is_refused(served: str, path: str, query: dict[str, str], message: str) -> None:
    answer = HTTP.get(f"{served}/api/v1/{path}", params=query)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text
