"""`headroom top`: clients near a limit, and who costs most, from the API of a running `headroom serve`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import orjson
import typer
from rich.console import Console
from rich.text import Text

from headroom.cli.output.clients import Row, client_lines
from headroom.cli.output.payers import payer_lines
from headroom.cli.output.tables import terminal_width
from headroom.cli.serve_api import ask
from headroom.cli.top.screen import group_lines
from headroom.cli.top.state import TopState
from quota_metrics.amounts import STYLES


class TopLook(NamedTuple):
    """How `headroom top` looks. `group`: empty, user or rule."""

    interval_s: float
    once: bool
    as_json: bool
    group: str = ""


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


def run_top(address: str, query: Mapping[str, str], look: TopLook) -> int:
    """Until `q` or Ctrl-C; without a terminal or with `once` one table, or the rows of the API as JSON."""
    if look.as_json:
        typer.echo(orjson.dumps(ask(address, "/api/v1/headroom", query), option=orjson.OPT_INDENT_2).decode())
        return 0
    console = Console()
    if look.once or not console.is_terminal or not sys.stdin.isatty():
        for line in _table(ask(address, "/api/v1/headroom", query), look.group, terminal_width(console)):
            console.print(line, soft_wrap=True)
        return 0
    from headroom.cli.top.terminal import run_screen

    def read() -> list[Row]:
        rows: list[Row] = ask(address, "/api/v1/headroom", query)
        return rows

    run_screen(read, lambda row: _usage(address, row), look.interval_s, TopState(group=look.group))
    return 0


def _usage(address: str, row: Row) -> list[tuple[float, float]]:
    """(seconds since 1970, rate) of a client on its worst broker, of the last 15 minutes."""
    names = {name: row[name] for name in ("cluster", "quota_key", "user", "client_id")}
    found = ask(address, "/api/v1/usage", {**names, "seconds": "900"})["brokers"].get(str(row["broker_id"]), {})
    return list(zip(found.get("at", ()), found.get("rate", ()), strict=False))


def _table(rows: list[Row], group: str, width: int | None) -> list[Text]:
    """Each row in the colour of its level."""
    if not rows:
        return [Text("No client matches, or none was active in the minute that is shown.")]
    shown = replace(TopState(rows=tuple(rows)), group=group).shown
    lines = group_lines(shown, group, width) if group else client_lines(shown, width)
    return [
        Text(line.text, STYLES[shown[line.row]["level"]].terminal if line.row is not None else "") for line in lines
    ]
