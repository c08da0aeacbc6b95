"""The report of quota-headroom: terminal table, JSON, HTML page, Parquet. Rows are dicts keyed by COLUMNS."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from rich.text import Text

from exporters.model import UNOWNED
from exporters.printable import printable, shortened
from exporters.text_table import Layout, table_lines, wrapped
from quota_metrics.amounts import STYLES, bytes_text, duration_text, rate_text, share_text
from quota_metrics.verdict.impact import HARMS
from quota_metrics.verdict.number_words import name_of_other
from quota_metrics.verdict.thresholds import LEVELS
from quota_metrics.verdict.victims import slowed_text
from spark_jobs.reports.report import Report, Row, page
from spark_jobs.transforms.verdicts import COLUMNS as STAGED

_MOMENT = pa.timestamp("us", "UTC")
_PLAIN: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int32(),
    pa.uint32(): pa.int32(),
    pa.uint64(): pa.int64(),
    pa.timestamp("s", "UTC"): _MOMENT,
}
_RENAMED = {"throttle_ms_max": "throttle_ms"}
_UNREPORTED = ("bucket_user", "bucket_client_id", "limit_known", "samples")
# Those of quota_utilization (deploy/clickhouse says what they are), of the client's worst broker in the latest window.
_TYPES: dict[str, pa.DataType] = {
    _RENAMED.get(name, name): pa.string() if pa.types.is_dictionary(kind) else _PLAIN.get(kind, kind)
    for name, kind in STAGED.items()
    if name not in _UNREPORTED
}
_TYPES |= {
    "headroom": pa.float64(),  # limit - group_usage
    # quota_metrics.verdict.victims: who makes an unthrottled client's requests slow; '' and null when nobody does
    "slowed_by_user": pa.string(),
    "slowed_by_client_id": pa.string(),
    "slowed_at_broker_id": pa.int32(),
    "latency_before_ms": pa.float64(),  # the median while that client was not busy
    # over all windows of the range; the other columns describe the latest window
    "range_throttle_ms": pa.float64(),
    "range_throttled_s": pa.float64(),
    "last_throttled": _MOMENT,  # start of the latest window with a throttle time; null: none had one
    # maximum of mean and p95 utilisation in each of at most 120 equal parts of the range
    "history_at": pa.list_(_MOMENT),  # starts of the parts with traffic
    "history": pa.list_(pa.float64()),
}
COLUMNS = pa.schema(_TYPES)
_LONG_WORD = re.compile(r"\S{61,}")


def _was_throttled(row: Row) -> bool:
    """Whether the client was throttled in an earlier window and not in this one."""
    return bool(row["range_throttle_ms"] > 0 and row["throttle_ms"] <= 0)


def to_html(rows: Sequence[Row]) -> str:
    filters: dict[str, Callable[..., object]] = {
        "rate": rate_text,
        "throttle": throttle_text,
        "share": share_text,
        "shortened": shortened,
    }
    filters |= {"why": why, "group": group, "earlier": _was_throttled, "bytes": bytes_text}
    from spark_jobs.reports.plots import headroom_plots  # takes seconds to import

    counts = {name: sum(row["level"] == name for row in rows) for name in reversed(LEVELS)}
    plots = headroom_plots(rows)
    return page("report.html.j2", filters, rows=rows, counts=counts, styles=STYLES, plots=plots)


def to_table(rows: Sequence[Row], width: int | None = None) -> list[Text]:
    """Lines: one for each client, then the reasons of clients that are or were not ok. Long names are truncated.
    Control sequences in client-chosen names are escaped. `width`: of the terminal; None: lines of any length."""
    if not rows:
        return [Text("No client was active in the range.")]
    cells = {name: [cell(row) for row in rows] for name, cell in _CELLS.items()}
    shown = {name: column for name, column in cells.items() if _has_content(name, column)}
    levels = [row["level"] for row in rows]
    texts = [list(row) for row in zip(levels, *shown.values(), strict=True)]
    lines = table_lines(["level", *shown], texts, width, _LAYOUT._replace(numbers=set(shown) - set(_TEXTS)))
    styles = [STYLES[level].terminal for level in levels]
    table = [Text(line.text, "" if line.row is None else styles[line.row]) for line in lines]
    starts, lengths = {row["window_start"] for row in rows}, {row["window_s"] for row in rows}
    title = f"each client in its latest window, of {max(lengths)} s, UTC"
    if len(starts) == len(lengths) == 1:
        title = f"window of {lengths.pop()} s from {moment(starts.pop())} UTC"
    reasons: list[Text] = []
    for row in (row for row in rows if row["level"] != "ok" or _was_throttled(row) or is_victim(row)):
        said = wrapped(printable(f"{row['level']} {shortened(row['client_id'])}: {why(row)}"), width, "")
        explained = [Text(line) for line in said]
        explained[0].stylize(STYLES[row["level"]].terminal, 0, len(row["level"]))
        reasons += explained
    return [Text(title), *table, *reasons]


_TEXTS = ("client-id", "user", "team", "quota")
_LAYOUT = Layout(
    names=("client-id", "user", "team"),
    leave=("broker", "team", "window", "all that share", "earlier", "throttle", "user", "quota", "usage"),
)
_CELLS: dict[str, Callable[[Row], str]] = {
    "client-id": lambda row: shortened(row["client_id"]),
    "user": lambda row: shortened(row["user"]),
    "team": lambda row: shortened(row["team"]),
    "quota": lambda row: row["quota_key"],
    "used": lambda row: share_text(row["utilization"]),
    "usage": lambda row: rate_text(row["usage"], row["quota_key"]),
    "all that share": lambda row: group(row) or "-",
    "limit": lambda row: rate_text(row["limit"], row["quota_key"]),
    "throttle": lambda row: throttle_text(row["throttle_ms"]),
    "earlier": lambda row: throttle_text(row["range_throttle_ms"] if _was_throttled(row) else 0.0),
    "broker": lambda row: str(row["broker_id"]),
    "window": lambda row: moment(row["window_start"]),
}


def _has_content(name: str, column: Sequence[str]) -> bool:
    """Omits optional columns that are empty, and the window column if the title contains the window."""
    if name == "window":
        return len(set(column)) > 1
    if name == "team":
        return set(column) != {UNOWNED}
    return name not in ("all that share", "earlier") or set(column) != {"-"}


def why(row: Row) -> str:
    """The reason with long names truncated, what changed, what the client feels, who makes it slow, and any
    throttling before the latest window."""
    felt = f"; {row['cause']}" if row["cause"] else ""
    felt += f"; {row['impact']}: {row['impact_reason']}" if row["impact"] in HARMS else ""
    if is_victim(row):
        latency_ms = row["request_latency_ms_max"]
        times = slowed_text(latency_ms, row["latency_before_ms"]) if latency_ms else "requests are slow"
        other = name_of_other(row["slowed_by_user"], row["slowed_by_client_id"], row["client_id"])
        felt += f"; {times}: {other} takes most of broker {row['slowed_at_broker_id']}"
    reason = _LONG_WORD.sub(lambda word: shortened(word[0]), row["reason"] + felt)
    if not _was_throttled(row):
        return reason
    longest, last = throttle_text(row["range_throttle_ms"]), moment(row["last_throttled"])
    return f"{reason}; throttled {longest} at most earlier, last in the window of {last}"


def is_victim(row: Row) -> bool:
    return row["slowed_at_broker_id"] is not None


def group(row: Row) -> str:
    """`180.0 kB/s of 3 clients` if the quota is shared, else ''."""
    usage, clients = rate_text(row["group_usage"], row["quota_key"]), row["shared_with"] + 1
    return f"{usage} of {clients} clients" if clients > 1 else ""


def moment(at: datetime) -> str:
    """`2026-11-20 10:00:00`."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def write(rows: Sequence[Row], directory: Path) -> None:
    """Writes headroom.json, report.html and headroom.parquet."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "headroom.json").write_bytes(REPORT.to_json(rows))
    (directory / "report.html").write_text(to_html(rows), encoding="utf-8")
    (directory / "headroom.parquet").write_bytes(REPORT.to_parquet(rows))


def throttle_text(throttle_ms: float) -> str:
    """`350 ms`, `1.2 s`; `-` for none."""
    return duration_text(throttle_ms if throttle_ms > 0 else None)


REPORT = Report(COLUMNS, to_table, to_html)
