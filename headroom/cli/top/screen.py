"""Draws the state of `headroom top` as lines of a given size. Sans-I/O."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from exporters.printable import printable, shortened
from exporters.text_table import Layout, TableLine, table_lines, wrapped
from headroom.cli.top.state import MOST_ROWS, Row, TopState, row_key
from headroom.cli.top.tables import client_lines
from quota_metrics.amounts import STYLES, duration_text, quota_word, rate_text, share_text
from quota_metrics.verdict.impact import impact_text
from quota_metrics.verdict.window import LATE_S, SUMMED, WINDOW_S

NO_CLIENT: Final = "No client matches, or none was active in the minute that is shown."
PLAIN, DIM, BAD, SELECTED = "", "dim", "red", "reverse"
_KEYS: Final = "/ filter  s sort  g group  Enter detail  p pause  q quit"
_DETAIL_KEYS: Final = "Esc back  p pause  q quit"
_BLOCKS: Final = "\N{LOWER ONE EIGHTH BLOCK}▂▃▄▅▆▇\N{FULL BLOCK}"
_GROUP_FIRST, _GROUP_REST = ("level",), ("quota", "clients", "throttled", "fullest", "usage")
_GROUP_LAYOUT = Layout(
    numbers=("clients", "throttled", "fullest", "usage"),
    names=("user", "team", "rule"),
    leave=("usage", "throttled", "quota"),
)


class DrawnLine(NamedTuple):
    """`style`: rich's."""

    text: str
    style: str = PLAIN


def screen(state: TopState, width: int, height: int) -> list[DrawnLine]:
    """`height` lines at most, each of `width` columns at most."""
    row = state.detailed
    if state.detail is None:
        body, keys = _table(state, width, height - 2), _KEYS
    elif row is None:
        body, keys = [DrawnLine("This client is not active any more.")], _DETAIL_KEYS
    else:
        body, keys = _detail(state, row, width), _DETAIL_KEYS
    foot = f"filter: {printable(state.filter)}_  (Enter keeps it, Esc clears it)" if state.is_typing else keys
    head = DrawnLine(_head(state), BAD if state.fault else PLAIN)
    lines = [head, *body[: height - 2], *[DrawnLine("")] * (height - 2 - len(body)), DrawnLine(foot, DIM)]
    return [DrawnLine(shortened(text, width), style) for text, style in lines]


def _head(state: TopState) -> str:
    if state.fault:
        return f"headroom: {printable(state.fault)}"
    count = f"{len(state.rows):,} client{'' if len(state.rows) == 1 else 's'}"
    parts = [f"{len(state.shown):,} of {count}" if state.filter else count]
    if state.rows:
        parts.append(minute_text(state.rows[0], state.now_s))
    if len(state.rows) == MOST_ROWS:
        parts.append("the worst; there may be more")
    parts.append(f"by {state.group}" if state.group else f"sorted by {state.sort}")
    if state.filter:
        parts.append(f"filter {printable(state.filter)!r}")
    if state.within:
        parts.append(f"of {state.within[0]} {printable(state.within[2]) or '(none)'}")
    return "  ".join([*parts, *(["PAUSED"] if state.is_paused else [])])


def _table(state: TopState, width: int, height: int) -> list[DrawnLine]:
    rows = state.shown
    if not rows:
        return [DrawnLine(NO_CLIENT)]
    heading, *lines = group_lines(rows, state.group, width) if state.group else client_lines(rows, width)
    selected = next((at for at, row in enumerate(rows) if row_key(row) == state.selected), None)
    remarks = [line for line in lines if line.row is None and line.text][-1:]
    of_rows = [line for line in lines if line.row is not None]
    room = max(height - 1 - len(remarks), 1)
    at = next((number for number, line in enumerate(of_rows) if line.row == selected), 0)
    first = max(0, min(at - room // 2, len(of_rows) - room))
    drawn = [
        DrawnLine(line.text, f"{level_style(line, rows)} {SELECTED if line.row == selected else ''}".rstrip())
        for line in of_rows[first : first + room]
    ]
    return [DrawnLine(heading.text, DIM), *drawn, *(DrawnLine(line.text, DIM) for line in remarks)]


def level_style(line: TableLine, rows: Sequence[Row]) -> str:
    """The style of the row's level; none for a line without a row."""
    return "" if line.row is None else STYLES[rows[line.row]["level"]].terminal


def minute_text(row: Row, now_s: float) -> str:
    """Which minute a row is of, and how old it is when there should be a newer one."""
    start = datetime.fromisoformat(row["window_start"][:19])
    age = f", {duration_text(1000 * _age_s(row, now_s))} old" if is_old(row, now_s) else ""
    return f"minute from {start:%H:%M:%S} UTC{age}"


def is_old(row: Row, now_s: float) -> bool:
    """Whether a minute after that of the row should be stored."""
    return _age_s(row, now_s) > WINDOW_S + LATE_S


def _age_s(row: Row, now_s: float) -> float:
    return now_s - datetime.fromisoformat(row["window_start"][:19]).replace(tzinfo=UTC).timestamp()


def group_lines(rows: Sequence[Row], by: str, width: int | None) -> list[TableLine]:
    """A line for each group and quota, below a line of headings; with the cluster where there are several."""
    are_several = len({row["cluster"] for row in rows}) > 1
    cells = [
        (
            row["level"],
            shortened(f"{row['name']} of {row['cluster']}" if are_several else row["name"]),
            quota_word(row["quota_key"]),
            f"{row['clients']:,}",
            f"{row['throttled']:,}",
            share_text(row["utilization"]),
            rate_text(row["usage"], row["quota_key"]),
        )
        for row in rows
    ]
    return table_lines((*_GROUP_FIRST, by, *_GROUP_REST), cells, width, _GROUP_LAYOUT)


def _detail(state: TopState, row: Row, width: int) -> list[DrawnLine]:
    key = row["quota_key"]
    facts = [
        ("client", printable(row["client_id"]) or "(no client id)"),
        ("user", printable(row["user"]) or "-"),
        ("team", printable(row["team"])),
        ("software", printable(f"{row['software_name']} {row['software_version']}") if row["software_name"] else "-"),
        ("quota", f"{key} {rate_text(row['limit'], key)}" if row["limit"] is not None else f"{key}: none"),
        ("rule", printable(row.get("matched_entity") or "-")),
        ("usage", f"{rate_text(row['usage'], key)}, {share_text(row['utilization'])} of the limit"),
        ("muted", duration_text(row["muted_ms"]) if row["muted_ms"] else "never in this minute"),
        ("broker", f"{row['broker_id']} (the worst)"),
        *((name.replace("_", " "), f"{row[name]:,.0f}") for name in SUMMED if name in row),
        ("impact", printable(impact_text(row["impact"], row["impact_reason"]))),
        ("cause", printable(row["cause"]) or "nothing explains it, or it is not near its limit"),
    ]
    lines = [DrawnLine(f"{name:10}{shortened(text, width - 10)}") for name, text in facts]
    reason = [DrawnLine(line) for line in wrapped(printable(row["reason"]), width, "")]
    level = DrawnLine(row["level"], STYLES[row["level"]].terminal)
    return [level, *reason, DrawnLine(""), *lines, DrawnLine(""), *_sparkline(state, row, width)]


def _sparkline(state: TopState, row: Row, width: int) -> list[DrawnLine]:
    """The rate of the last 15 minutes; full height is the limit, or the highest rate without one."""
    if not state.usage:
        return [DrawnLine("no usage of the last 15 minutes is known yet", DIM)]
    most = max(rate for _, rate in state.usage)
    top = max(row["limit"] or 0.0, most, 1.0)
    line = sparkline([rate for _, rate in state.usage], top, min(width, 90))
    scale = "the limit" if row["limit"] and row["limit"] >= most else "the highest rate"
    return [
        DrawnLine(line),
        DrawnLine(f"15 minutes; highest {rate_text(most, row['quota_key'])}; full height is {scale}", DIM),
    ]


def sparkline(rates: Sequence[float], top: float, columns: int) -> str:
    """One character for each of at most `columns` equal parts: its highest rate, in eighths of `top`."""
    count = min(columns, len(rates))
    parts = [rates[at * len(rates) // count : (at + 1) * len(rates) // count] for at in range(count)]
    return "".join(_BLOCKS[min(7, int(max(part) / top * 8))] for part in parts)
