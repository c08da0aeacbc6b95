"""What axe says of every page, in three widths and two themes; the pictures are left in build/pictures."""

import pytest
from playwright.sync_api import Browser

from tests.headroom.web.conftest import Watched
from tests.headroom.web.five_hours import RISING, THROTTLED, five_hours
from tests.headroom.web.pictures import PICTURES, THEMES, WIDTHS, settle, take, take_reports
from tests.kit.serving import eventually

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]

# The narrowest and the widest page; the others are a release's.
_EVERYDAY = {(min(WIDTHS), "light"), (max(WIDTHS), "dark")}


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        pytest.param(width, theme, marks=() if (width, theme) in _EVERYDAY else pytest.mark.release)
        for width in WIDTHS
        for theme in THEMES
    ],
)
def test_axe_finds_nothing_and_no_page_scrolls_sideways(served: str, browser: Browser, width: int, theme: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert take(browser, served, PICTURES, (width,), (theme,)) == {}


# How opaque the right of a chart is, of 255: the median of a row of pixels.
_OPAQUE = """() => {
    const canvas = document.querySelector("figure[data-usage] canvas"), { width, height } = canvas;
    const row = canvas.getContext("2d").getImageData(width * 0.6, height * 0.3, width * 0.3, 1).data;
    return [...row].filter((_, at) => at % 4 === 3).sort((a, b) => a - b)[Math.floor(row.length / 8)];
}"""


@pytest.mark.release
@pytest.mark.spark
def test_forecast_and_reports_of_five_hours(browser: Browser) -> None:
    """From rows of usage to what a reader sees: pages of clients, and the pages that the jobs write."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with five_hours() as running:
        assert take_reports(browser, running, PICTURES, (360, 1440), ("dark",)) == {}
        page = browser.new_page()
        settle(page, running.page_of(RISING))
        assert "limit reached at 20" in page.locator("main").inner_text()
        assert page.locator("figure.fan canvas").count() == 1
        page.set_viewport_size({"width": 390, "height": 844})
        settle(page, running.page_of(THROTTLED))
        # Muted for a quarter of the time, in more minutes than there are pixels.
        assert 0.15 * 255 < page.evaluate(_OPAQUE) < 0.25 * 255
        page.goto((PICTURES / "quota-suggest.html").resolve().as_uri())
        below = page.locator("tbody", has_text=THROTTLED.client_id).inner_text()
        assert "nightly-export was throttled for " in below
        assert "--entity-name nightly-export --add-config producer_byte_rate=" in below
        page.close()


# How bright the names of a chart's axis of time are, of 255.
_AXIS = """() => {
    const canvas = document.querySelector("figure[data-usage] canvas"), { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, height * 0.9, width, height * 0.1);
    return Math.max(...[...data].map((value, at) => (at % 4 === 0 && data[at + 3] > 250 ? value : -1)));
}"""


def test_charts_follow_the_theme_and_are_dark_on_paper(served: str, watched: Watched) -> None:
    page = watched.page
    page.emulate_media(color_scheme="light")
    page.goto(f"{served}/clients/detail?cluster=prod&user=alice&client_id=app-warn")
    page.wait_for_selector("figure[data-points]", timeout=60_000)
    assert page.evaluate(_AXIS) < 60
    page.evaluate(f"() => addEventListener('beforeprint', () => queueMicrotask(() => {{ onPaper = ({_AXIS})() }}))")
    page.emulate_media(color_scheme="dark")
    for _ in range(2):  # before and after paper
        eventually(lambda: page.evaluate(_AXIS), lambda brightness: brightness > 200)
        page.pdf()
        assert page.evaluate("onPaper") < 60
