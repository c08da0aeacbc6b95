"""What documents name exists, decisions are short, and pages have no dates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"performance.md", "settings.md", "tables.md", "metrics.md"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
WRITTEN = [page for page in PAGES if page.name not in GENERATED]
MOST_LINES = 10
TREES = ("headroom", "spark_jobs", "telemetry", "quota_metrics", "exporters", "deploy", "tests", "docs", ".ci")

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\([^)]*\)")
_FILE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, TREES))})/[\w/.-]*[\w/-](?![\w*{{])")
_DATE = re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}\b|\bat [0-9]{1,2}:[0-9]{2}\b")


def prose(page: Path) -> str:
    """Without code."""
    return _SPAN.sub("", _FENCE.sub("", _LINK.sub("", page.read_text())))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {name for span in _SPAN.findall(page.read_text()) for name in _FILE.findall(span)}
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_has_no_dates(page: Path) -> None:
    assert [line for line in prose(page).splitlines() if _DATE.search(line)] == []


def test_a_decision_has_a_status_and_ten_lines_at_most() -> None:
    entries = re.split(r"^## (?=\d+\.)", (ROOT / "DECISIONS.md").read_text(), flags=re.MULTILINE)[1:]
    numbers = [int(entry.partition(".")[0]) for entry in entries]
    assert numbers == list(range(1, len(entries) + 1))
    for number, entry in zip(numbers, entries, strict=True):
        _, status, *text = entry.strip().splitlines()
        assert re.match(r"Status: (in force|superseded by \d+)\b", status), entry
        assert len(text) <= MOST_LINES, f"{number}: {len(text)} lines"
        replaced = {int(one) for one in re.findall(r"superseded by (\d+)", status)}
        assert all(number < one <= len(entries) for one in replaced), entry
