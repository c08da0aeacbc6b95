"""`headroom top`: clients near a limit, and who costs most, from the API of a running `headroom serve`."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from exporters.printable import json_text
from exporters.text_table import TableLine
from headroom.cli.output.tables import terminal_width
from headroom.cli.serve_api import ask
from headroom.cli.top.screen import NO_CLIENT, group_lines, is_old, level_style, minute_text
from headroom.cli.top.state import MOST_ROWS, Row, TopState
from headroom.cli.top.tables import client_lines, payer_lines, topic_lines


def run_costs(address: str, *, as_json: bool) -> None:
    """Prints who is over the budgets of telemetry, and who costs most."""
    payers: list[Row] = ask(address, "/api/v1/payers", {})
    none = "No telemetry arrived in the last 15 minutes, and nobody is over a budget."

    def style(line: TableLine) -> str:
        return "red" if line.row is not None and payers[line.row]["refused"] else ""

    _print(payers, payer_lines, none, style, as_json=as_json)


def run_topics(address: str, query: Mapping[str, str], *, as_json: bool) -> None:
    """Prints the topics of clients, with the bytes of the last hour."""
    rows: list[Row] = ask(address, "/api/v1/topics", query)
    none = "No topics were read in the last hour; the setting quotas.topics.sample says whether they are."
    _print(rows, topic_lines, none, lambda _: "", as_json=as_json)


def _print(
    rows: list[Row],
    lines: Callable[[list[Row], int | None], list[TableLine]],
    none: str,
    style: Callable[[TableLine], str],
    *,
    as_json: bool = False,
) -> None:
    """One table, or the rows of the API as JSON. `none`: what is printed without rows."""
    if as_json:
        typer.echo(json_text(rows))
    elif not rows:
        typer.echo(none)
    else:
        console = Console()
        for line in lines(rows, terminal_width(console)):
            console.print(Text(line.text, style(line)), soft_wrap=True)


def run_top(
    address: str,
    query: Mapping[str, str],
    *,
    interval_s: float = 2.0,
    once: bool = False,
    as_json: bool = False,
    group: str = "",
    token: str = "",
) -> None:
    """Until `q` or Ctrl-C; without a terminal or with `once` one table, or the rows of the API as JSON.

    `group`: empty, user, team or rule. `token`: of an application, whose own view it is; empty: all clients are seen.
    """
    query = {**query, "limit": str(MOST_ROWS)}

    def document() -> Any:
        return ask(address, "/api/v1/me", query, token) if token else ask(address, "/api/v1/headroom", query)

    def read() -> list[Row]:
        rows: list[Row] = document()["clients"] if token else document()
        return rows

    if as_json:
        typer.echo(json_text(document()))
        return
    if once or Console().is_dumb_terminal or not sys.stdout.isatty() or not sys.stdin.isatty():
        rows = read()
        visible = replace(TopState(rows=tuple(rows)), group=group).shown

        def lines(_: list[Row], width: int | None) -> list[TableLine]:
            return group_lines(visible, group, width) if group else client_lines(visible, width)

        _print(visible, lines, NO_CLIENT, lambda line: level_style(line, visible))
        for remark in remarks(rows, time.time()):
            typer.echo(f"headroom: {remark}", err=True)
        return
    from headroom.cli.top.terminal import run_screen

    def usage(row: Row) -> list[tuple[float, float]]:
        """(seconds since 1970, rate) of a client on its worst broker, of the last 15 minutes."""
        if token:  # the token of an application does not reach it
            return []
        names = {name: row[name] for name in ("cluster", "quota_key", "user", "client_id")}
        brokers = ask(address, "/api/v1/usage", {**names, "seconds": "900"})["brokers"]
        rates = brokers.get(str(row["broker_id"]), {})
        return list(zip(rates.get("at", ()), rates.get("rate", ()), strict=False))

    run_screen(read, usage, interval_s, TopState(group=group))


def remarks(rows: list[Row], now_s: float) -> list[str]:
    """What a reader of these rows has to know: that they are old, or not all. `now_s`: seconds since 1970."""
    notes = []
    if rows and is_old(rows[0], now_s):
        notes.append(f"{minute_text(rows[0], now_s)}: nothing newer is stored")
    if len(rows) == MOST_ROWS:
        notes.append(f"these are the worst {MOST_ROWS:,}, there may be more: --level, --user or --cluster narrow them")
    return notes
