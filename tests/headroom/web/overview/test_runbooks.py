"""Runbooks as pages: each is read whole, and what it holds is escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headroom.web.rendering import environment
from headroom.web.runbooks import Block, blocks, inline, runbook

NAMES = sorted(page.stem for page in (Path(__file__).parents[4] / "docs" / "runbooks").glob("*.md"))


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_each_word_of_its_runbook(name: str) -> None:
    text = runbook(name)
    assert text is not None
    found = list(blocks(text))
    assert [block.kind for block in found].count("command") == 1
    assert {len(row) for block in found for row in block.rows} == {2}
    body = re.sub(r"^# .*|^```\w*$|^\|---.*", "", text, flags=re.MULTILINE)
    shown = [block.text + " " + " ".join(" ".join(row) for row in block.rows) for block in found]
    assert words(" ".join(shown)) == words(body)


def test_a_page_has_headings_a_command_to_copy_and_links() -> None:
    table = "| if | then |\n|---|---|\n| a | [Other](Other.md), `x --y` |\n"
    text = f"# N\n\nWhy <b>.\n\n## Look\n\n```\ncurl -s x\n```\n\n{table}"
    page = environment().get_template("runbook.html")
    shown = page.render(name="N", blocks=list(blocks(text)), path="/", freshness={"state": "late", "shown_s": None})
    assert "<h2>Look</h2>" in shown
    assert 'data-copy="curl -s x"' in shown
    assert '<td><a href="/runbooks/Other">Other</a>, <code>x --y</code></td>' in shown
    assert "Why &lt;b&gt;." in shown


def test_only_runbooks_are_links() -> None:
    assert inline("[x](javascript:alert) [y](../a.md)") == "[x](javascript:alert) [y](../a.md)"
    assert list(blocks("plain\nlines")) == [Block("text", "plain lines")]
