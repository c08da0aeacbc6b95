"""Prints the result of `headroom quotas what-if` as a table or JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from exporters.printable import json_text, printable, shortened
from exporters.text_table import Layout
from headroom.cli.options import Output
from headroom.cli.output import quotas as quota_output
from headroom.cli.output.tables import print_table
from quota_metrics.what_if.answer import WhatIfAnswer
from quota_metrics.what_if.document import coverage_text, document

HEADINGS = ("verdict", "quota", "user", "client", "broker", "limit", "throttled", "longest", "reason")
LAYOUT = Layout(
    numbers=("broker",), names=("user", "client"), leave=("broker", "longest", "user", "quota"), below=("reason",)
)


def print_answer(answer: WhatIfAnswer, output: Output) -> None:
    """As a table: `before -> after` where they differ; clients that the change does not affect are only counted."""
    outcome = document(answer)
    if output is Output.JSON:
        typer.echo(json_text(outcome))
        return
    if rows := client_rows(outcome["clients"]):
        print_table(HEADINGS, rows, LAYOUT)
    else:
        typer.echo("no client would have been throttled for longer or shorter")
    for line in outcome["command"].split("\n"):
        typer.echo(printable(line))  # to copy: never wrapped
    if outcome["warning"]:
        typer.echo(printable(outcome["warning"]))
    typer.echo(
        f"over {outcome['covers']['seconds']:.0f} s; the change does not affect {outcome['unaffected']} more;"
        f" {coverage_text(outcome['covers'])}"
    )


def client_rows(clients: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The affected ones, as HEADINGS."""
    rows: list[tuple[str, ...]] = []
    for client in clients:
        if not client["affected"]:
            continue
        before, after = client["before"], client["after"]
        rows.append(
            (
                client["verdict"],
                client["quota_key"],
                shortened(client["user"]),
                shortened(client["client_id"]),
                str(client["broker_id"]),
                _change(_limit(before), _limit(after)),
                _change(f"{before['throttled_s']:.1f} s", f"{after['throttled_s']:.1f} s"),
                _change(f"{before['throttle_ms_max']:.0f} ms", f"{after['throttle_ms_max']:.0f} ms"),
                client["reason"],
            )
        )
    return rows


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _limit(side: Mapping[str, Any]) -> str:
    return "none" if side["limit"] is None else quota_output.number(side["limit"])
