"""The table of payers: principals or source addresses, what they cost and what was refused them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exporters.printable import shortened
from exporters.text_table import Layout, TableLine, table_lines
from quota_metrics.amounts import bytes_text

_HEADINGS = ("payer", "refused", "for", "not metered", "points", "pushes", "sent", "instances")
_LAYOUT = Layout(
    numbers=("refused", "not metered", "points", "pushes", "sent", "instances"),
    names=("payer",),
    leave=("instances", "pushes", "sent", "not metered", "for"),
)


def payer_lines(payers: Sequence[Mapping[str, Any]], width: int | None) -> list[TableLine]:
    """`payers`: rows of `/api/v1/payers`, or of `over_budget` of `/api/v1/status`, which have no costs."""
    headings = _HEADINGS if all("points" in payer for payer in payers) else _HEADINGS[:3]
    cells = [
        (
            shortened(payer["payer"]),
            f"{sum(payer['refused'].values()):,}",
            ", ".join(sorted(payer["refused"])),
            f"{payer.get('not_metered', 0):,}",
            f"{payer.get('points', 0):,}",
            f"{payer.get('pushes', 0):,}",
            bytes_text(payer.get("bytes", 0)),
            f"{payer.get('instances', 0):,}",
        )[: len(headings)]
        for payer in payers
    ]
    return table_lines(headings, cells, width, _LAYOUT)
