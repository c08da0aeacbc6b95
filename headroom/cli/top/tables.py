"""The tables of `headroom top`, from the rows of the API: clients and quotas, payers, topics of clients."""

from collections.abc import Mapping, Sequence
from typing import Any

from exporters.model import UNOWNED, QuotaKey
from exporters.printable import shortened
from exporters.text_table import Layout, TableLine, table_lines
from headroom.cli.top.state import Row
from quota_metrics.amounts import bytes_text, duration_text, quota_word, rate_text, share_text
from quota_metrics.verdict.impact import HARMS

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


_PAYER_HEADINGS = ("payer", "refused", "for", "not metered", "points", "pushes", "sent", "instances")
_PAYER_LAYOUT = Layout(
    numbers=("refused", "not metered", "points", "pushes", "sent", "instances"),
    names=("payer",),
    leave=("instances", "pushes", "sent", "not metered", "for"),
)


def payer_lines(payers: Sequence[Mapping[str, Any]], width: int | None) -> list[TableLine]:
    """`payers`: rows of `/api/v1/payers`, or of `over_budget` of `/api/v1/status`, which have no costs."""
    headings = _PAYER_HEADINGS if all("points" in payer for payer in payers) else _PAYER_HEADINGS[:3]
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
    return table_lines(headings, cells, width, _PAYER_LAYOUT)


_TOPIC_HEADINGS = ("topic", "owner", "direction", "client", "user", "mean", "share", "error")
_OWNER_AT = _TOPIC_HEADINGS.index("owner")
_TOPIC_LAYOUT = Layout(
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
    lines: list[tuple[str, ...]] = [_TOPIC_HEADINGS, *cells]
    if all(row["topic_team"] == UNOWNED for row in rows):
        lines = [(*cells[:_OWNER_AT], *cells[_OWNER_AT + 1 :]) for cells in lines]
    return table_lines(lines[0], lines[1:], width, _TOPIC_LAYOUT)
