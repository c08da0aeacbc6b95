"""Pictures of every page in three widths and two themes, and what axe says of each.

python -m tests.headroom.web.pictures writes build/pictures/PAGE-WIDTH-THEME.png of a service with five hours of usage,
of the forecasts that the job makes of it, and of the jobs' reports; and the pictures of docs/images.
"""

import itertools
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from tests.headroom.web.five_hours import CLUSTER, JOBS, RISING, THROTTLED, FiveHours, five_hours

WIDTHS = {360: 740, 1024: 768, 1440: 900}
THEMES = ("light", "dark")
PICTURES = Path(__file__).parents[3] / "build" / "pictures"
AXE = Path(__file__).parent / "vendor" / "axe-4.10.3.min.js"
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
_FOUND = """async (options) => (await axe.run(document, options)).violations.map(
    (one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`)"""


# Fields and buttons that reach beyond the window, where nobody can scroll to, and fields into which a phone zooms.
_BEYOND = """[...document.querySelectorAll("input, select, button")].filter((one) => !one.closest(".scroll") &&
    (one.getBoundingClientRect().right > window.innerWidth || (window.innerWidth < 500 && one.nodeName !== "BUTTON" &&
        parseFloat(getComputedStyle(one).fontSize) < 16))).map((one) => one.outerHTML.slice(0, 160))"""


# Texts and charts that end beyond the paper, or beyond a box that shows nothing outside of itself, or are folded.
_CUT = """() => [...document.querySelectorAll("main *")].filter((part) => {
    const box = part.getBoundingClientRect(), hides = getComputedStyle(part).overflowX !== "visible";
    return box.width && part.checkVisibility({ visibilityProperty: true }) && !part.closest("svg, input") &&
        (box.right > innerWidth + 1 || (hides && part.scrollWidth > part.clientWidth + 1) ||
         (part.nodeName === "DETAILS" && !part.innerText.includes(part.lastChild.textContent.trim().slice(0, 20))));
}).map((part) => part.outerHTML.slice(0, 160))"""


def settle(page: Page, url: str) -> None:
    """Opens a page and waits for its charts."""
    page.goto(url)
    for _ in range(page.locator("figure[data-usage]").count()):
        page.wait_for_selector("figure[data-points]", timeout=60_000)


def complaints(page: Page) -> list[str]:
    """Of axe, one a rule; and whether the page is wider than its window."""
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(_FOUND, _RULES)
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
        found.append("the page scrolls sideways")
    found += [f"beyond the window, or zoomed into: {control}" for control in page.evaluate(_BEYOND)]
    return found


def lost_on_paper(page: Page) -> list[str]:
    """The page is opened anew then."""
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 within Chromium's margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    lost: list[str] = page.evaluate(_CUT)
    lost += [f"a {role} on paper" for role in ("button", "navigation") if page.get_by_role(role).count()]
    page.emulate_media(media="screen")
    return lost


def pages_of(client: Mapping[str, str]) -> dict[str, str]:
    """Paths by name; `client` is a row of the API."""
    named = {name: client[name] for name in ("cluster", "user", "client_id")}
    asked = {**named, "quota_key": client["quota_key"], "value": "50000", "since": "15m"}
    return {
        "overview": "/",
        "search": f"/?{urlencode({'q': client['client_id']})}",
        "week": f"/clients/seen?{urlencode({'q': client['client_id']})}",
        "client": f"/clients/detail?{urlencode(named)}",
        "quotas": "/quotas",
        "what-if": f"/quotas/what-if?{urlencode(asked)}",
        "subscriptions": "/subscriptions",
        "preview": "/subscriptions/preview?metrics=*",
        "status": "/status",
    }


def take(
    browser: Browser, address: str, target: Path, widths: Iterable[int] = WIDTHS, themes: Iterable[str] = THEMES
) -> dict[str, list[str]]:
    """Writes the pictures of every page; returns complaints by picture."""
    client = httpx.get(f"{address}/api/v1/headroom", timeout=60).json()[0]
    lists = {"search": "/?q=app", "week": "/clients/seen?q=app", "users": "/?by=user", "rules": "/?by=rule"}
    paths = pages_of(client) | lists | {"runbook": "/runbooks/HeadroomStoreDown", "missing": "/no-such-page"}
    urls = {name: address + path for name, path in paths.items()}
    return _of_urls(browser, urls, target, (widths, themes), whole=False)


def take_reports(
    browser: Browser, running: FiveHours, target: Path, widths: Iterable[int] = WIDTHS, themes: Iterable[str] = THEMES
) -> dict[str, list[str]]:
    """The same of the jobs' reports, which are written too, and of clients' pages with the forecast: whole pages."""
    urls: dict[str, str] = {}
    for job in JOBS:
        report = target / f"{job}.html"
        running.job(job, "--output", "html", "--path", str(report))
        urls[job] = report.resolve().as_uri()
    urls |= {f"forecast-{each.client_id}": running.page_of(each) for each in (RISING, THROTTLED)}
    return _of_urls(browser, urls, target, (widths, themes), whole=True)


def _of_urls(
    browser: Browser, urls: Mapping[str, str], target: Path, looks: tuple[Iterable[int], Iterable[str]], *, whole: bool
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for width, theme in itertools.product(*looks):
        page = browser.new_page(
            color_scheme="dark" if theme == "dark" else "light",
            bypass_csp=True,  # axe is put into the page
        )
        for name, url in urls.items():
            picture = f"{name}-{width}-{theme}"
            page.set_viewport_size({"width": width, "height": WIDTHS[width]})
            settle(page, url)
            page.screenshot(path=target / f"{picture}.png", full_page=whole)
            if complained := complaints(page) + ([] if whole else lost_on_paper(page)):
                found[picture] = complained
        page.close()
    return found


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with five_hours() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = take_reports(browser, running, PICTURES) | take(browser, running.address, PICTURES)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        shown = {"cluster": CLUSTER, "user": RISING.user, "client_id": RISING.client_id, "quota_key": RISING.key}
        for name in ("overview", "client", "what-if"):
            settle(page, running.address + pages_of(shown)[name])
            page.screenshot(path=PICTURES.parents[1] / "docs" / "images" / f"{name}.png")
        browser.close()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
