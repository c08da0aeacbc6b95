"""How a run's rows are divided into pieces to publish."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.clickhouse.publication import PIECE_ROWS, piece_starts


@given(st.lists(st.integers(1, 2 * PIECE_ROWS), min_size=1, max_size=40))
def test_pieces_have_whole_windows_and_few_rows(rows: list[int]) -> None:
    starts = piece_starts(enumerate(rows))
    bounds = [0, *starts, len(rows)]
    pieces = [rows[first:until] for first, until in pairwise(bounds)]
    assert [count for piece in pieces for count in piece] == rows
    assert all(piece and (len(piece) == 1 or sum(piece) <= PIECE_ROWS) for piece in pieces)
    for piece, following in pairwise(pieces):
        assert sum(piece) + following[0] > PIECE_ROWS
