"""Screenshots with Chromium where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headroom.demo.screenshots import take_screenshots
from tests.kit.terminal.fake_serve import FakeServe


@pytest.mark.browser
def test_screenshot_is_taken_of_each_page(tmp_path: Path) -> None:
    with FakeServe({}) as server:
        names = take_screenshots(server.http, "demo", tmp_path)
    pages = ("overview", "client", "quotas", "what-if", "subscriptions", "preview", "status")
    assert names == [f"page-{name}.png" for name in pages]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert any("java-producer-throttled" in path for path in server.asked)


def test_no_screenshots_without_chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert take_screenshots("127.0.0.1:1", "demo", tmp_path) == []
