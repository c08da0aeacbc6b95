"""A hostile browser: scripts in names on every page, requests from other sites, foreign Host headers."""

from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser

from tests.headroom.web.conftest import HOSTILE, HTTP, Watched
from tests.headroom.web.pictures import pages_of
from tests.kit.serving import Served, eventually
from tests.kit.terminal.fake_serve import FakeServe

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

CLIENT = {"cluster": "prod", "user": HOSTILE, "client_id": HOSTILE, "quota_key": "producer_byte_rate"}
BAD_WHAT_IF = {"user": HOSTILE, "value": "1000", "cluster": HOSTILE}
PAGES = {
    **pages_of(CLIENT),
    "team": f"/?{urlencode({'user': HOSTILE, 'team': HOSTILE})}",
    "what-if-refused": f"/quotas/what-if?{urlencode(BAD_WHAT_IF)}",
    "preview-refused": f"/subscriptions/preview?{urlencode({'match': f'client_id={HOSTILE}('})}",
    "error": f"/?{urlencode({'level': HOSTILE})}",
}
API = ("/api/v1/headroom", "/api/v1/what-if", "/api/v1/subscription-preview", "/api/v1/status")
OPEN = ("/metrics", "/healthz", "/readyz", "/readyz/kafka", "/static/charts.js", "/missing")
PATHS = (*{path.partition("?")[0] for path in PAGES.values()}, *API, *OPEN)


@pytest.mark.parametrize("name", PAGES)
def test_hostile_names_are_escaped_on_every_page(served: str, watched: Watched, name: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(served + PAGES[name])
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator("main img, main script").count() == 0
    fields = [field.input_value() for field in page.locator("main input:not([type=hidden])").all()]
    shown = " ".join([page.locator("main").inner_text(), *fields])
    assert "<script>alert(1)" in shown or name == "error"
    if name.endswith(("refused", "error")):  # Chromium reports the status of a page as an error of the console
        watched.faults[:] = [fault for fault in watched.faults if "status of 400" not in fault]


def test_page_of_another_site_cannot_read_responses(serving: Served, served: str, browser: Browser) -> None:
    """Of one on this machine: `localhost`, where the service is 127.0.0.1."""
    page = browser.new_page()
    with FakeServe({"/": (200, b"a page without a policy of its own")}) as server:
        evil = f"http://localhost:{server.http.rpartition(':')[2]}"
        page.goto(evil)
        for path in PATHS:
            for mode in ("cors", "no-cors"):
                script = "([url, mode]) => fetch(url, {mode}).then(answer => answer.type, () => 'refused')"
                assert page.evaluate(script, [served + path, mode]) in ("opaque", "refused"), path
        page.close()
    for path in PATHS:  # what the browser sent
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "origin": evil}
        assert HTTP.get(served + path, headers=headers).status_code == 403, path
    eventually(lambda: serving.log.read_text(), lambda text: "refused a" in text)
