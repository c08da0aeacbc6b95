"""The runbooks of docs/runbooks, which the pages show beside what is wrong."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_DIRECTORIES = (_HERE / "runbooks", _HERE.parents[1] / "docs" / "runbooks")  # of a wheel; of a checkout
_NAME = re.compile(r"[A-Za-z]{1,80}")


@cache
def runbook(name: str) -> str | None:
    """The text of a runbook, as Markdown; None when there is none of that name."""
    if not _NAME.fullmatch(name):
        return None
    found = next((file for place in _DIRECTORIES if (file := place / f"{name}.md").is_file()), None)
    return found.read_text(encoding="utf-8") if found else None
