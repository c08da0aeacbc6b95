"""The table of `headroom top`: a line for each client and quota, from the rows of `/api/v1/headroom`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exporters.model import UNOWNED
from exporters.printable import shortened
from exporters.text_table import Layout, TableLine, table_lines
from quota_metrics.amounts import duration_text, quota_word, rate_text, share_text
from quota_metrics.verdict.impact import HARMS

Row = dict[str, Any]

_HEADINGS = ("level", "client", "user", "team", "quota", "used", "p95", "usage", "limit", "muted", "impact", "broker")
_TEAM = _HEADINGS.index("team")
_LAYOUT = Layout(
    numbers=("used", "p95", "usage", "limit", "muted", "broker"),
    names=("client", "user", "team"),
    leave=("broker", "team", "p95", "user", "impact", "muted", "usage", "quota"),
)
_WORD_BELOW = 120  # columns, below which a quota's key is one word


def client_lines(rows: Sequence[Row], width: int | None) -> list[TableLine]:
    """`width`: of the terminal; None for lines of any length. The first line has the headings. Without owners there is
    no column of teams."""
    is_narrow = width is not None and width < _WORD_BELOW
    lines: list[tuple[str, ...]] = [_HEADINGS]
    for row in rows:
        key = row["quota_key"]
        is_implied = row["limit"] is None and row["implied_limit"] is not None  # by the throttle times
        lines.append(
            (
                row["level"],
                shortened(row["client_id"]),
                shortened(row["user"]),
                shortened(row["team"]),
                quota_word(key) if is_narrow else key,
                share_text(row["utilization"]),
                share_text(row["utilization_p95"]),
                rate_text(row["usage"], key),
                f"implied {rate_text(row['implied_limit'], key)}" if is_implied else rate_text(row["limit"], key),
                duration_text(row["muted_ms"]) if row["muted_ms"] else "-",
                row["impact"] if row["impact"] in HARMS else "-",
                str(row["broker_id"]),
            )
        )
    if all(row["team"] == UNOWNED for row in rows):
        lines = [(*cells[:_TEAM], *cells[_TEAM + 1 :]) for cells in lines]
    return table_lines(lines[0], lines[1:], width, _LAYOUT)
