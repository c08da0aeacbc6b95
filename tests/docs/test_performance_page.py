"""docs/performance.md: what `make bench` writes of the figures that it measured."""

from __future__ import annotations

import re

from tests.bench.performance import PAGE, ROWS, Figure, page


def rows_of(text: str) -> list[list[str]]:
    return [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines()[2:] if line.startswith("| ")][1:]


def figure(name: str, value: float, ratio: float, baseline: str = "bare") -> Figure:
    return Figure(name, value, "us", ratio, baseline, "abc1234")


def test_a_row_shows_the_figure_that_is_worst_for_its_goal() -> None:
    fast = [figure("frames_16kB_produce", 900, 0.95, "blind:950"), figure("frames_1MB_fetch", 20, 0.92, "blind:22")]
    (row,) = rows_of(page(fast, ""))
    assert row == [
        "frames from 16 kB up, beside a blind copy",
        "20.0 us",
        "0.92 of blind",
        "at least 0.91",
        "met",
        "`abc1234`",
    ]
    (row,) = rows_of(page([*fast, figure("frames_100kB_fetch", 1_200, 0.5, "blind:2400")], ""))
    assert row[1:5] == ["1,200 us", "0.50 of blind", "at least 0.91", "**not met**"]


def test_a_limit_on_the_value() -> None:
    (row,) = rows_of(page([figure("view_near_limit_p50_ms", 101, 1.01, "goal_100_ms")], ""))
    assert row[1:5] == ["101.0 us", "", "at most 100 us", "**not met**"]
    (row,) = rows_of(page([figure("view_near_limit_p50_ms", 99, 0.99, "goal_100_ms")], ""))
    assert row[4] == "met"


def test_what_was_never_measured_has_no_row_and_what_was_keeps_it() -> None:
    assert rows_of(page([], "")) == []
    assert rows_of(page([figure("load_average", 3, 1)], "")) == []
    before = page([figure("view_near_limit_p50_ms", 99, 0.99), figure("minute_of_0", 9, 0.1)], "")
    after = page([figure("minute_of_0", 5, 0.05)], before)
    assert [row[1] for row in rows_of(after)] == ["5.00 us", "99.0 us"]


def test_the_page_has_rows_of_the_table_only() -> None:
    shown = [row[0] for row in rows_of(PAGE.read_text())]
    assert shown == [row.what for row in ROWS if row.what in shown]
    assert 0 < len(shown) <= len(ROWS) <= 36
