"""A table on standard output: aligned lines, in a pipe of any length, on a terminal as wide as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from exporters.text_table import Layout, table_lines


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    layout: Layout = Layout(),
    styles: Sequence[str] = (),
) -> None:
    """Prints cells of plain text. `styles`: rich's, one for each row."""
    console = Console()
    for line in table_lines(headings, rows, terminal_width(console), layout):
        style = styles[line.row] if styles and line.row is not None else ""
        console.print(Text(line.text, style), soft_wrap=True)


def terminal_width(console: Console) -> int | None:
    """None in a pipe, whose lines are not wrapped."""
    return console.width if console.is_terminal else None
