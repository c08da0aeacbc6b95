"""What the matrices are made of, without a server: their statements are complete, a table keeps cells of other runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.matrix.clickhouse import statements
from tests.matrix.page_table import write_cells


def test_each_place_of_each_statement_has_a_value() -> None:
    checked = list(statements(1_000 * 60_000))
    assert len(checked) > 15
    for statement in checked:
        places = set(re.findall(r"\{(\w+):\w", statement.sql))
        assert places <= statement.parameters.keys(), statement.name


def test_a_run_of_a_part_keeps_the_other_cells_of_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- written by make matrix-platforms -->\n<!-- end -->\nafter\n")
    columns, rows = ("job", "old", "new"), ("first", "second", "third")
    write_cells(page, columns, rows, {("third", "old"): "works"})
    write_cells(page, columns, rows, {("first", "new"): "works", ("third", "new"): "fails"})
    write_cells(page, columns, rows, {("third", "new"): "works"})
    assert page.read_text().splitlines() == [
        "before",
        "<!-- written by make matrix-platforms -->",
        "| job | old | new |",
        "| --- | --- | --- |",
        "| first |  | works |",
        "| third | works | works |",
        "<!-- end -->",
        "after",
    ]
