"""`headroom status`: Headroom's own health in five lines, from the API of a running `headroom serve`."""

import time
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from exporters.printable import json_text, printable
from exporters.text_table import Layout, wrapped
from headroom.cli.output.tables import print_table, terminal_width
from headroom.cli.serve_api import ask
from headroom.cli.top.state import Row
from headroom.cli.top.tables import payer_lines
from quota_metrics.amounts import STYLES

_MOST_PAYERS = 3
_MOST_FAULTS = 6
_RECENT_MS = 600_000
_WELL = "ready: nothing is late, dropped or degraded"


def run_status(address: str, *, as_json: bool = False, raw: bool = False) -> int:
    """Prints five lines, who is over a budget, and what is wrong. Returns 0, or 1 when something is late, dropped or
    degraded. `raw`: Headroom's own metrics instead of the lines; `as_json`: the document of the API."""
    status = ask(address, "/api/v1/status", {})
    faults = status_faults(status, time.time() * 1000)
    if as_json:
        typer.echo(json_text(status))
    elif raw:
        rows = [
            (row["name"], row["labels"], f"{row['value']:g}")
            for row in status["metrics"]
            if row["value"] and not row["name"].endswith(("_bucket", "_created"))
        ]
        print_table(("metric", "labels", "value"), rows, Layout(numbers=("value",)))
        _print_faults(faults)
    else:
        console = Console()
        width = terminal_width(console)
        typer.echo(f"{status['version']}\nat {address}")
        for tile in status["tiles"]:
            head = f"{tile['level']:8}  {tile['name']:19}  "
            lines = wrapped(printable(tile["text"]), width, " " * len(head))
            console.print(Text(head + lines[0][len(head) :], STYLES[tile["level"]].terminal), soft_wrap=True)
            for line in lines[1:]:
                console.print(Text(line), soft_wrap=True)
            if tile["runbook"]:
                typer.echo(f"{' ' * len(head)}runbook: {tile['runbook']}")
        for payer in payer_lines(status["over_budget"][:_MOST_PAYERS], width) if status["over_budget"] else ():
            typer.echo(payer.text)
        _print_faults(faults, _MOST_FAULTS)
    return 1 if faults else 0


def _print_faults(faults: Sequence[str], most: int | None = None) -> None:
    for fault in faults[:most] or [_WELL]:
        typer.echo(fault)
    if most is not None and len(faults) > most:
        typer.echo(f"and {len(faults) - most} more: --raw or --output json")


def status_faults(status: Row, now_ms: float) -> list[str]:
    """Problems for an operator to look at, one per line. Of what was lost that of the last ten minutes: `degraded` has
    the numbers, counters keep the rest."""
    faults = [] if status["ready"] else [f"not ready: {status['reason']}"]
    faults += [f"degraded: {printable(text)}" for text in status["degraded"]]
    if not faults:
        faults += [
            f"{tile['name']}: {printable(tile['text'])}" for tile in status["tiles"] if tile["level"] == "critical"
        ]
    left_out = (row for row in status["left_out"] if row["last_ms"] >= now_ms - _RECENT_MS)
    return faults + [f"not metered: {row['exchanges']} exchanges of {printable(row['payer'])}" for row in left_out]
