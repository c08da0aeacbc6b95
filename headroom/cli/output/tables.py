"""A table on standard output: aligned lines, in a pipe of any length, on a terminal as wide as it is."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from exporters.text_table import Layout, table_lines


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], layout: Layout = Layout()) -> None:
    console = Console()
    for line in table_lines(headings, rows, terminal_width(console), layout):
        console.print(Text(line.text), soft_wrap=True)


def terminal_width(console: Console) -> int | None:
    """None in a pipe, whose lines are not wrapped: also with FORCE_COLOR, by which rich takes it for a terminal."""
    return console.width if sys.stdout.isatty() else None
