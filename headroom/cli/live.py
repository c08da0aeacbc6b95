"""`headroom top`: clients near a limit, and who costs most, from the API of a running `headroom serve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headroom.cli.output.clients import Row, client_lines
from headroom.cli.output.payers import payer_lines
from headroom.cli.output.tables import terminal_width
from headroom.cli.serve_api import ask
from quota_metrics.amounts import STYLES


def run_costs(address: str, *, as_json: bool) -> int:
    """Prints who is over the budgets of telemetry, and who costs most."""
    payers = ask(address, "/api/v1/payers", {})
    if as_json:
        typer.echo(orjson.dumps(payers, option=orjson.OPT_INDENT_2).decode())
        return 0
    console = Console()
    if not payers:
        typer.echo("No telemetry arrived in the last 15 minutes, and nobody is over a budget.")
        return 0
    for line in payer_lines(payers, terminal_width(console)):
        over = line.row is not None and bool(payers[line.row]["refused"])
        console.print(Text(line.text, "red" if over else ""), soft_wrap=True)
    return 0


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
