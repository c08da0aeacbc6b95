"""What axe says of every page, in three widths and two themes; the pictures are left in build/pictures."""

import pytest
from playwright.sync_api import Browser

from tests.headroom.web.five_hours import RISING, THROTTLED, five_hours
from tests.headroom.web.pictures import PICTURES, THEMES, WIDTHS, settle, take, take_reports

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
        assert take_reports(browser, running, PICTURES, (390, 1440), ("dark",)) == {}
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
