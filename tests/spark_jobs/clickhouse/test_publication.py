"""How a run's rows are divided into inserts to publish."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.clickhouse.runs import INSERT_ROWS, insert_starts


@given(st.lists(st.integers(1, 2 * INSERT_ROWS), min_size=1, max_size=40))
def test_inserts_have_whole_windows_and_few_rows(rows: list[int]) -> None:
    starts = insert_starts(enumerate(rows))
    bounds = [0, *starts, len(rows)]
    inserts = [rows[first:until] for first, until in pairwise(bounds)]
    assert [count for insert in inserts for count in insert] == rows
    assert all(insert and (len(insert) == 1 or sum(insert) <= INSERT_ROWS) for insert in inserts)
    for insert, following in pairwise(inserts):
        assert sum(insert) + following[0] > INSERT_ROWS
