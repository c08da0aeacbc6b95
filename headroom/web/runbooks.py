"""The runbooks of docs/runbooks, which the pages show beside what is wrong."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

_HERE = Path(__file__).parent
_DIRECTORIES = (_HERE / "runbooks", _HERE.parents[1] / "docs" / "runbooks")  # of a wheel; of a checkout
_NAME = re.compile(r"[A-Za-z]{1,80}")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([A-Za-z]+)\.md\)")


class Block(NamedTuple):
    """Of a page. `kind`: heading, text, command, code, or table, whose `rows` have cells; the others have `text`."""

    kind: str
    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


@cache
def runbook(name: str) -> str | None:
    """The text of a runbook, as Markdown; None when there is none of that name."""
    if not _NAME.fullmatch(name):
        return None
    path = next((file for place in _DIRECTORIES if (file := place / f"{name}.md").is_file()), None)
    return path.read_text(encoding="utf-8") if path else None


def blocks(text: str) -> Iterator[Block]:
    """A runbook in parts, without its title: of Markdown what runbooks use."""
    at = 0
    for fence in _FENCE.finditer(text):
        yield from _prose(text[at : fence.start()])
        yield Block("code" if fence[1] else "command", fence[2].rstrip("\n"))
        at = fence.end()
    yield from _prose(text[at:])


def _prose(text: str) -> Iterator[Block]:
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        if paragraph.startswith("## "):
            yield Block("heading", paragraph.removeprefix("## "))
        elif paragraph.startswith("|"):
            head, _, *rows = paragraph.splitlines()
            cells = (row.strip("|").split("|") for row in (head, *rows))
            yield Block("table", rows=tuple(tuple(map(str.strip, row)) for row in cells))
        elif not paragraph.startswith("# "):
            yield Block("text", " ".join(paragraph.split()))


def inline(text: str) -> Markup:
    """Code and links to other runbooks, within a paragraph or a cell."""
    parts: list[Markup] = []
    at = 0
    for match in _INLINE.finditer(text):
        code, name, target = match.groups()
        parts.append(escape(text[at : match.start()]))
        link = Markup('<a href="/runbooks/{}">{}</a>').format(target, name)
        parts.append(link if code is None else Markup("<code>{}</code>").format(code))
        at = match.end()
    return Markup().join([*parts, escape(text[at:])])
