"""The table of `headroom top --by topic`: a line for each topic of a client and direction, most bytes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporters.model import UNOWNED, QuotaKey
from exporters.printable import shortened
from exporters.text_table import Layout, TableLine, table_lines
from quota_metrics.amounts import rate_text, share_text

_HEADINGS = ("topic", "owner", "direction", "client", "user", "mean", "share", "error")
_OWNER = _HEADINGS.index("owner")
_LAYOUT = Layout(
    numbers=("mean", "share", "error"),
    names=("topic", "owner", "client", "user"),
    leave=("owner", "user", "error", "share", "direction"),
)


def topic_lines(rows: Sequence[Mapping[str, Any]], width: int | None) -> list[TableLine]:
    """`rows`: of `/api/v1/topics`. `share`: of what the client transfers in this direction; `error`: standard error.
    `owner`: the team of the topic; without owned topics there is no such column."""
    cells = [
        (
            shortened(row["topic"]),
            shortened(row["topic_team"]),
            row["direction"],
            shortened(row["client_id"]),
            shortened(row["user"]),
            rate_text(row["rate"], QuotaKey.PRODUCER_BYTE_RATE),
            share_text(row["share"]),
            share_text(row["bytes_error"] / row["bytes"] if row["bytes"] else None),
        )
        for row in rows
    ]
    lines: list[tuple[str, ...]] = [_HEADINGS, *cells]
    if all(row["topic_team"] == UNOWNED for row in rows):
        lines = [(*cells[:_OWNER], *cells[_OWNER + 1 :]) for cells in lines]
    return table_lines(lines[0], lines[1:], width, _LAYOUT)
