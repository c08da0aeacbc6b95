"""Lays a table out in plain lines of a given width. No I/O.

Nothing that somebody reads as a whole is cut: numbers, commands, and names of up to NAME_CHARS characters. What has no
room goes below its row, or its column is left out, which the last line says.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len

from exporters.printable import printable, shortened

NAME_CHARS: Final = 30
_GAP = "  "
_INDENT = "    "
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTP]?B(?:/s)?|ms|min|s|h|%)(?!\w))")


class Layout(NamedTuple):
    """What may happen to columns, by their headings."""

    numbers: Collection[str] = ()  # right-aligned
    names: Collection[str] = ()  # cut when there is no room, to NAME_CHARS characters at least
    leave: Sequence[str] = ()  # left out when there is no room, the first one first
    below: Collection[str] = ()  # sentences: below their row when there is no room, wrapped between words
    commands: Collection[str] = ()  # on lines of their own, never wrapped
    lists: Collection[str] = ()  # cells may have several lines; in other cells a line end is escaped


class TableLine(NamedTuple):
    """`row`: the index of the row that it belongs to; None for headings and remarks."""

    text: str
    row: int | None = None


Cells = Mapping[str, str]  # by heading


def table_lines(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None, layout: Layout = Layout()
) -> list[TableLine]:
    """A line of headings, then each row. `width`: of the terminal, None for any.

    Where even the columns that must stay do not fit, each row is a block of lines, one for each heading.
    """
    of_lines = {*layout.lists, *layout.commands}
    cells: list[Cells] = []
    for row in rows:
        texts = {}
        for name, cell in zip(headings, row, strict=True):
            lines = cell.split("\n") if name in of_lines else [cell]
            texts[name] = "\n".join(map(printable, lines)) or "-"
        cells.append(texts)
    wide = {name: max(_width(name), *(_width(texts[name]) for texts in cells), 0) for name in headings}
    shown = [name for name in headings if name not in layout.commands]
    if width is not None and not _fits(shown, wide, width):
        shown = [name for name in shown if name not in layout.below]
    least = {name: min(size, NAME_CHARS) if name in layout.names else size for name, size in wide.items()}
    leaving = iter(layout.leave)
    while width is not None and not _fits(shown, least, width):
        if (gone := next(leaving, None)) is None:
            return list(_blocks(headings, cells, width, layout))
        shown = [name for name in shown if name != gone]
    sizes = dict(wide)
    if width is not None:  # what is left of the width goes to names that would be cut, from left to right
        room = width - sum(least[name] for name in shown) - len(_GAP) * (len(shown) - 1)
        for name in shown:
            sizes[name] = min(wide[name], least[name] + room)
            room -= sizes[name] - least[name]
    lines_of_rows = [TableLine(_row_line({name: name for name in shown}, shown, sizes, layout))]
    for number, of_row in enumerate(cells):
        parts = {name: of_row[name].split("\n") for name in shown}
        for at in range(max(map(len, parts.values()), default=0)):
            part = {name: of[at] if at < len(of) else "" for name, of in parts.items()}
            lines_of_rows.append(TableLine(_row_line(part, shown, sizes, layout), number))
        lines_of_rows += _under(number, of_row, shown, width, layout)
    left_out = [name for name in headings if name in layout.leave and name not in shown]
    if left_out:
        lines_of_rows.append(TableLine(f"(no room in {width} columns for: {', '.join(left_out)})"))
    return lines_of_rows


def wrapped(sentence: str, width: int | None, indent: str = _INDENT) -> list[str]:
    """Lines of a sentence, broken between words and never between a number and its unit."""
    if width is None:
        return [indent + sentence]
    whole = _BEFORE_A_UNIT.sub(_NO_BREAK, sentence)
    lines = textwrap.wrap(
        whole, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _width(cell: str) -> int:
    return max(map(cell_len, cell.split("\n")))


def _fits(shown: Sequence[str], sizes: Mapping[str, int], width: int) -> bool:
    return sum(sizes[name] for name in shown) + len(_GAP) * (len(shown) - 1) <= width


def _under(number: int, row: Cells, shown: Collection[str], width: int | None, layout: Layout) -> Iterator[TableLine]:
    """The sentences of a row that are not `shown` in it, and its commands."""
    for name, cell in row.items():
        if cell != "-" and name in layout.below and name not in shown:
            yield from (TableLine(line, number) for line in wrapped(cell, width))
        if cell != "-" and name in layout.commands:
            yield from (TableLine(line, number) for line in cell.split("\n"))


def _row_line(cells: Cells, shown: Sequence[str], sizes: Mapping[str, int], layout: Layout) -> str:
    texts = []
    for name in shown:
        text = shortened(cells[name], sizes[name]) if name in layout.names else cells[name]
        space = " " * (sizes[name] - cell_len(text))
        texts.append(space + text if name in layout.numbers else text + space)
    return _GAP.join(texts).rstrip()


def _blocks(headings: Sequence[str], cells: Sequence[Cells], width: int | None, layout: Layout) -> Iterator[TableLine]:
    longest = max(map(len, headings))
    for number, row in enumerate(cells):
        if number:
            yield TableLine("")
        for name in headings:
            if name in layout.commands or name in layout.below:
                continue
            for at, part in enumerate(row[name].split("\n")):
                yield TableLine(f"{name if not at else '':{longest}}{_GAP}{part}", number)
        yield from _under(number, row, (), width, layout)
