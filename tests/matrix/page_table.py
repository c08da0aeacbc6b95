"""A table of a page that a run of the matrix writes cell by cell: a run that is interrupted, or of a part, keeps the
other cells."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_BEGIN, _END = re.compile(r"<!-- written by make matrix(-platforms)? -->\n"), "<!-- end -->\n"

Cells = Mapping[tuple[str, str], str]  # by row and column


def write_cells(page: Path, columns: Sequence[str], rows: Sequence[str], cells: Cells) -> None:
    """Replaces these. `columns`: the first is that of the rows' names. Rows without a cell are left out."""
    content = page.read_text()
    begin = _BEGIN.search(content)
    assert begin is not None, f"{page} has no place for the table"
    text, _, after = content[begin.end() :].partition(_END)
    present = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    filled = {
        (row, column): cell for row, *rest in present[2:] for column, cell in zip(present[0][1:], rest, strict=True)
    }
    filled |= cells
    tried = [row for row in rows if any((row, column) in filled for column in columns)]
    lines = [columns, ["---"] * len(columns)]
    lines += [[row, *(filled.get((row, column), "") for column in columns[1:])] for row in tried]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    page.write_text(content[: begin.end()] + table + _END + after)
