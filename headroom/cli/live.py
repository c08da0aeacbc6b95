"""`headroom top` and `headroom status`: clients near a limit, and Headroom's own health.

Both query a running `headroom serve` at its HTTP address, so that a terminal shows the same data as the pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from exporters.printable import printable
from exporters.text_table import Layout
from headroom.cli.output.clients import Row, client_lines
from headroom.cli.output.tables import print_table, terminal_width
from headroom.cli.serve_api import ask
from quota_metrics.amounts import STYLES


def run_top(address: str, query: Mapping[str, str], interval_s: float, *, once: bool, as_json: bool = False) -> int:
    """Refreshes until Ctrl-C; prints one table without a terminal or with `once`, or the rows of the API as JSON."""
    if as_json:
        typer.echo(orjson.dumps(ask(address, "/api/v1/headroom", query), option=orjson.OPT_INDENT_2).decode())
        return 0
    console = Console()
    if once or not console.is_terminal:
        for line in _table(ask(address, "/api/v1/headroom", query), terminal_width(console)):
            console.print(line, soft_wrap=True)
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(lambda: ask(address, "/api/v1/headroom", query), console), refresh=True)
            time.sleep(interval_s)


def run_status(address: str) -> int:
    """Prints readiness, lag and drops. Returns 0, or 1 when something is late, dropped or degraded."""
    status = ask(address, "/api/v1/status", {})
    faults = status_faults(status)
    values = [row for row in status["metrics"] if row["value"] and not row["name"].endswith(("_bucket", "_created"))]
    print_table(
        ("metric", "labels", "value"),
        [(row["name"], row["labels"], f"{row['value']:g}") for row in values],
        Layout(numbers=("value",)),
    )
    for fault in faults or ["ready: nothing is late, dropped or degraded"]:
        typer.echo(fault)
    return 1 if faults else 0


def status_faults(status: Row) -> list[str]:
    """Problems for an operator to look at, one per line."""
    faults = [] if status["ready"] else [f"not ready: {status['reason']}"]
    faults += [f"degraded: {printable(text)}" for text in status["degraded"]]
    faults += [f"not metered: {row['exchanges']} exchanges of {printable(row['payer'])}" for row in status["left_out"]]
    losses = (row for row in status["metrics"] if row["value"] > 0 and _is_loss(row["name"]))
    return faults + [f"{row['name']}{{{row['labels']}}} is {row['value']:g}" for row in losses]


def _is_loss(name: str) -> bool:
    return name.startswith("headroom_") and any(word in name for word in ("dropped", "lost", "left_out", "unaccounted"))


def _screen(read: Callable[[], list[Row]], console: Console) -> Group:
    try:
        rows = read()
    except ConnectionError as exc:
        return Group(Text(f"headroom: {exc}", style="red"), Text("asking again; Ctrl-C ends"))
    since = f", the minute from {rows[0]['window_start']} UTC on" if rows else ""
    head = Text(f"{len(rows)} clients{since}; Ctrl-C ends")
    return Group(head, *_table(rows, console.width)[: console.height - 2])


def _table(rows: list[Row], width: int | None) -> list[Text]:
    """Each row in the colour of its level."""
    if not rows:
        return [Text("No client matches, or none was active in the minute that is shown.")]
    return [
        Text(line.text, STYLES[rows[line.row]["level"]].terminal if line.row is not None else "", no_wrap=True)
        for line in client_lines(rows, width)
    ]
