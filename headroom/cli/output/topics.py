"""The table of `headroom top --by topic`: a line for each topic of a client and direction, most bytes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporters.model import QuotaKey
from exporters.printable import shortened
from exporters.text_table import Layout, TableLine, table_lines
from quota_metrics.amounts import rate_text, share_text

_HEADINGS = ("topic", "direction", "client", "user", "mean", "share", "error")
_LAYOUT = Layout(
    numbers=("mean", "share", "error"), names=("topic", "client", "user"), leave=("user", "error", "share", "direction")
)


def topic_lines(rows: Sequence[Mapping[str, Any]], width: int | None) -> list[TableLine]:
    """`rows`: of `/api/v1/topics`. `share`: of what the client transfers in this direction; `error`: standard error."""
    return table_lines(_HEADINGS, [_cells(row) for row in rows], width, _LAYOUT)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        shortened(row["topic"]),
        row["direction"],
        shortened(row["client_id"]),
        shortened(row["user"]),
        rate_text(row["rate"], QuotaKey.PRODUCER_BYTE_RATE),
        share_text(row["share"]),
        share_text(row["bytes_error"] / row["bytes"] if row["bytes"] else None),
    )
