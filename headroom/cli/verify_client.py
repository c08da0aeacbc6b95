"""`headroom verify-client`: a sink that checks the telemetry of the client that connects to it."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from typing import Annotated, Any, Literal

import typer

from headroom.cli.output.forms import Output
from headroom.cli.output.verdicts import print_verdicts_json, print_verdicts_junit, print_verdicts_table
from headroom.config.types import Address, parse_address
from telemetry.verification.client_check import ClientCheck
from telemetry.verification.findings import Outcome
from telemetry.verification.listener import VerificationListener

app = typer.Typer()

_BROKEN, _INCOMPLETE = 4, 3
_PRINTERS = {
    Output.TABLE: print_verdicts_table,
    Output.JSON: print_verdicts_json,
    Output.JUNIT: print_verdicts_junit,
}


@app.command("verify-client")
def verify_client_command(
    listen: Annotated[str, typer.Option(help="Where the client bootstraps from, PLAINTEXT.")] = "127.0.0.1:9092",
    interval: Annotated[int, typer.Option(min=100, max=60_000, help="Push interval in ms.")] = 2_000,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the check ends in any case.")] = 300.0,
    patience: Annotated[int, typer.Option(min=0, help="How many ms late a request may come.")] = 5_000,
    output: Annotated[
        Literal[Output.TABLE, Output.JSON, Output.JUNIT], typer.Option(help="Table, JSON, or JUnit's XML.")
    ] = Output.TABLE,
) -> None:
    """Check the KIP-714 telemetry of one client. Connect it, keep it open until `complete`, close it.

    Exit 0: all rules passed; 3: some were not seen; 4: one was broken.
    """
    check = ClientCheck(interval_ms=interval, patience_ms=patience, client_instance_id=uuid.uuid4().bytes)
    try:
        parsed: Any = parse_address(listen)
        address = Address(**parsed)
    except ValueError as exc:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen") from exc
    listener = VerificationListener(check, lambda: time.monotonic_ns() // 1_000_000)
    try:
        asyncio.run(
            listener.run(
                address.host,
                address.port,
                timeout,
                lambda bootstrap: _say(f"ready kafka={bootstrap}"),
                lambda: _say("complete: close the client"),
            )
        )
    except OSError as exc:
        print(f"headroom: cannot listen at {listen}: {exc.strerror}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from exc
    verdicts = check.verdicts
    _PRINTERS[output](verdicts)
    outcomes = {verdict.outcome for verdict in verdicts}
    if Outcome.FAIL in outcomes:
        raise typer.Exit(_BROKEN)
    raise typer.Exit(_INCOMPLETE if Outcome.NOT_SEEN in outcomes else 0)


def _say(line: str) -> None:
    """On standard error: standard output has the report only."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - what a script waits for
