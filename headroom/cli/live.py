"""`headroom top`, `headroom gateway share`, `headroom status`: clients near a limit, the share of the brokers' traffic
that passes the gateways, and Headroom's own health.

All query a running `headroom serve` at its HTTP address, so that a terminal shows the same data as the pages.
"""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from exporters.printable import one_line, printable, shortened
from headroom.cli.output.tables import print_table
from headroom.errors import ArgumentError
from quota_metrics.amounts import duration_text, rate_text, share_text

Row = dict[str, Any]

_TIMEOUT_S = 10.0
_TOKEN = re.compile(r"[!-~]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_STYLES = {
    "throttled": "bold red", "critical": "red", "warn": "yellow", "watch": "cyan", "ok": "green", "unknown": "dim",
}  # fmt: skip
_HEADINGS = ("level", "client", "user", "quota", "utilisation", "p95", "usage", "limit", "muted", "broker")
_NUMBERS = frozenset(("utilisation", "p95", "usage", "limit", "muted", "broker"))


def ask(address: str, path: str, query: Mapping[str, str]) -> Any:
    """A JSON response of the API. `address` is HOST:PORT or a URL.

    Raises ConnectionError when no `headroom serve` answers, ArgumentError for an invalid address, token or query.
    """
    connect, host, port = _parsed(address)
    headers = {"Authorization": f"Bearer {token}"} if (token := _token()) else {}
    try:
        connection = connect(host, port, timeout=_TIMEOUT_S)
        connection.request("GET", f"{path}?{urlencode(query, errors='replace')}", headers=headers)
        response = connection.getresponse()
        body = response.read()
    except OSError as exc:
        raise ConnectionError(f"cannot reach {address}: {exc.strerror or exc}") from exc
    except http.client.HTTPException as exc:
        raise ConnectionError(f"{address} broke off, or does not speak HTTP: {exc!r}") from exc
    if response.status == 400:
        raise ArgumentError(_error(response.status, body))
    if response.status != 200:
        raise ConnectionError(f"{address}: {_error(response.status, body)}")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ConnectionError(f"{address} answers, but is not the HTTP address of `headroom serve`") from exc


def _parsed(address: str) -> tuple[type[http.client.HTTPConnection], str, int]:
    """The kind of connection, host and port. Raises ArgumentError."""
    url = address if "//" in address else f"http://{address}"
    with suppress(ValueError):  # from an invalid bracket, port or host name
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (_DEFAULT_PORTS.get(parts.scheme) if url == address else None)
        if host.encode("idna") and port and parts.scheme in _DEFAULT_PORTS:
            connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            return connect, host, port
    raise ArgumentError(f"--http {address!r} is not HOST:PORT or http(s)://HOST[:PORT]")


def _token() -> str:
    """Raises ArgumentError, whose message does not contain the token."""
    token = os.environ.get("HEADROOM_WEB__TOKEN", "")
    if not _TOKEN.fullmatch(token):
        raise ArgumentError("HEADROOM_WEB__TOKEN has characters other than visible ASCII")
    return token


def run_top(address: str, query: Mapping[str, str], interval_s: float, *, once: bool, as_json: bool = False) -> int:
    """Refreshes until Ctrl-C; prints one table without a terminal or with `once`, or the rows of the API as JSON."""
    if as_json:
        typer.echo(orjson.dumps(ask(address, "/api/v1/headroom", query), option=orjson.OPT_INDENT_2).decode())
        return 0
    console = Console()
    if once or not console.is_terminal:
        print_table(_HEADINGS, [_cells(row) for row in ask(address, "/api/v1/headroom", query)], numbers=_NUMBERS)
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(lambda: ask(address, "/api/v1/headroom", query), console.height), refresh=True)
            time.sleep(interval_s)


def run_status(address: str) -> int:
    """Prints readiness, lag and drops. Returns 0, or 1 when something is late, dropped or degraded."""
    status = ask(address, "/api/v1/status", {})
    faults = status_faults(status)
    values = [row for row in status["metrics"] if row["value"] and not row["name"].endswith(("_bucket", "_created"))]
    print_table(
        ("metric", "labels", "value"),
        [(row["name"], row["labels"], f"{row['value']:g}") for row in values],
        numbers=("value",),
    )
    for fault in faults or ["ready: nothing is late, dropped or degraded"]:
        typer.echo(fault)
    return 1 if faults else 0


def run_share(address: str, query: Mapping[str, str]) -> int:
    """Prints the share of the brokers' metered traffic that passes the gateways, per bucket and broker."""
    headings = ("client", "user", "quota", "seen", "brokers", "gateways", "bypassing", "broker")
    rows = ask(address, "/api/v1/gateway-share", query)
    if not rows:
        typer.echo("nothing to compare: no broker's JMX is read (quotas.jmx.targets), or no client is active")
        return 0
    cells = [
        (
            shortened(printable(row["client_id"])) or "(all)",
            shortened(printable(row["user"])) or "(all)",
            row["quota_key"],
            share_text(row["share"]),
            *(rate_text(row[name], row["quota_key"]) for name in ("broker_rate", "gateway_rate", "bypassing_rate")),
            str(row["broker_id"]),
        )
        for row in rows
    ]
    print_table(headings, cells, numbers=headings[3:])
    return 0


def status_faults(status: Row) -> list[str]:
    """Problems for an operator to look at, one per line."""
    faults = [] if status["ready"] else [f"not ready: {status['reason']}"]
    faults += [f"degraded: {printable(text)}" for text in status["degraded"]]
    faults += [f"not metered: {row['exchanges']} exchanges of {printable(row['payer'])}" for row in status["left_out"]]
    losses = (row for row in status["metrics"] if row["value"] > 0 and _is_loss(row["name"]))
    return faults + [f"{row['name']}{{{row['labels']}}} is {row['value']:g}" for row in losses]


def _is_loss(name: str) -> bool:
    return name.startswith("headroom_") and any(word in name for word in ("dropped", "lost", "left_out", "unaccounted"))


def _screen(read: Callable[[], list[Row]], height: int) -> Group:
    table = Table(expand=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left", no_wrap=True)
    try:
        rows = read()
    except ConnectionError as exc:
        return Group(Text(f"headroom: {exc}", style="red"), Text("asking again; Ctrl-C ends"))
    for row in rows[: max(height - 6, 1)]:
        table.add_row(*(Text(cell) for cell in _cells(row)), style=_STYLES.get(row["level"], ""))
    since = f", the minute from {rows[0]['window_start']} UTC on" if rows else ""
    return Group(Text(f"{len(rows)} clients{since}; Ctrl-C ends"), table)


def _cells(row: Row) -> tuple[str, ...]:
    key = row["quota_key"]
    return (
        row["level"],
        shortened(printable(row["client_id"])),
        shortened(printable(row["user"])),
        key,
        share_text(row["utilization"]),
        share_text(row["utilization_p95"]),
        rate_text(row["usage"], key),
        rate_text(row["limit"], key),
        duration_text(row["muted_ms"]) if row["muted_ms"] else "-",
        str(row["broker_id"]),
    )


def _error(status: int, body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"answered {status}: {one_line(body.decode('utf-8', 'replace'))[:200]}"
