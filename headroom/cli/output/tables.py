"""A table on standard output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporters.printable import printable

_PIPE_WIDTH = 10_000  # lines in a pipe are not wrapped


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()) -> None:
    """Prints a table of plain text cells, which may have several lines. `numbers`: headings of right-aligned
    columns."""
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
    return Text("\n".join(map(printable, content.split("\n"))))  # Text, so that a name in brackets is not markup
