"""`headroom verify-client`: a sink that checks the telemetry of the client that connects to it."""

import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

import typer

from exporters.printable import json_text, printable
from exporters.text_table import Layout
from headroom.cli.options import Output, fail
from headroom.cli.output.tables import print_table
from headroom.config.types import parse_address
from telemetry.verification.client_check import ClientCheck
from telemetry.verification.findings import MEANINGS, Outcome, RuleVerdict
from telemetry.verification.listener import VerificationListener

app = typer.Typer()

_BROKEN, _INCOMPLETE = 4, 3
_TABLE_FRAME_BYTES = 64
_NOT_SEEN = "the client did nothing that the rule applies to"


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
    except ValueError as exc:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen") from exc
    listener = VerificationListener(check, lambda: time.monotonic_ns() // 1_000_000)
    try:
        asyncio.run(
            listener.run(
                parsed["host"],
                parsed["port"],
                timeout,
                # On standard error: standard output has the report only.
                lambda bootstrap: typer.echo(f"ready kafka={bootstrap}", err=True),
                lambda: typer.echo("complete: close the client", err=True),
            )
        )
    except OSError as exc:
        raise fail(f"cannot listen at {listen}: {exc.strerror}") from exc
    verdicts = check.verdicts
    match output:
        case Output.TABLE:
            _print_table(verdicts)
        case Output.JSON:
            rows = [
                {
                    "rule": verdict.rule,
                    "outcome": verdict.outcome,
                    "seen": verdict.observed,
                    "reason": verdict.reason,
                    "meaning": MEANINGS[verdict.rule],
                    "frame": verdict.frame.hex(),
                    "frame_bytes": verdict.frame_bytes,
                }
                for verdict in verdicts
            ]
            typer.echo(json_text(rows))
        case Output.JUNIT:
            _print_junit(verdicts)
    outcomes = {verdict.outcome for verdict in verdicts}
    if Outcome.FAIL in outcomes:
        raise typer.Exit(_BROKEN)
    raise typer.Exit(_INCOMPLETE if Outcome.NOT_SEEN in outcomes else 0)


def _print_table(verdicts: Sequence[RuleVerdict]) -> None:
    """A row for each rule; the frames of violations, shortened, below it."""
    rows = [
        (verdict.rule, verdict.outcome, str(verdict.observed), verdict.reason or MEANINGS[verdict.rule])
        for verdict in verdicts
    ]
    print_table(("rule", "outcome", "seen", "reason"), rows, Layout(("seen",), below=("reason",)))
    for verdict in verdicts:
        if verdict.frame:
            frame_beginning = verdict.frame[:_TABLE_FRAME_BYTES].hex()
            sys.stdout.write(f"{verdict.rule}: frame of {verdict.frame_bytes} bytes begins with {frame_beginning}\n")


def _print_junit(verdicts: Sequence[RuleVerdict]) -> None:
    """A test suite with a test case for each rule: a failure when it was broken, skipped when it was not seen."""
    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    suite = ElementTree.Element(
        "testsuite",
        name="KIP-714",
        tests=str(len(verdicts)),
        failures=str(counts[Outcome.FAIL]),
        errors="0",
        skipped=str(counts[Outcome.NOT_SEEN]),
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="headroom.verify-client", name=verdict.rule)
        if verdict.outcome is Outcome.FAIL:
            failure = ElementTree.SubElement(case, "failure", message=printable(verdict.reason))
            failure.text = f"{MEANINGS[verdict.rule]}\nframe of {verdict.frame_bytes} bytes: {verdict.frame.hex()}"
        elif verdict.outcome is Outcome.NOT_SEEN:
            ElementTree.SubElement(case, "skipped", message=_NOT_SEEN)
    ElementTree.indent(suite)
    sys.stdout.write('<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n")
