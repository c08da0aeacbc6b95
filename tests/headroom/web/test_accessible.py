"""What axe says of every page, in three widths and two themes; the pictures are left in build/pictures."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.headroom.web.pictures import PICTURES, THEMES, WIDTHS, take

pytestmark = [pytest.mark.browser, pytest.mark.clickhouse]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_no_page_scrolls_sideways(served: str, browser: Browser, width: int, theme: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert take(browser, served, PICTURES, (width,), (theme,)) == {}
