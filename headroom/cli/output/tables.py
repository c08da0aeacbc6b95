"""A table on standard output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporters.printable import printable

_PIPE_WIDTH = 10_000  # lines of a pipe are not folded


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()) -> None:
    """Cells are plain text, line ends in them are kept. `numbers`: the headings of columns that stand to the right."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in numbers else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)


def _cell(content: str) -> Text:
    return Text("\n".join(map(printable, content.split("\n"))))  # Text: a name in brackets is no markup
