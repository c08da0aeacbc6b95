"""`headroom quotas stale`: replication throttles that were left over, or are missing on one side."""

from typing import Annotated

import typer

from exporters.printable import json_text, printable
from exporters.text_table import Layout
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.options import Output, TableOrJson
from headroom.cli.output.tables import print_table
from headroom.cli.quotas.as_code import DIFFERS
from quota_metrics.cluster.document import throttles_document
from quota_metrics.cluster.reading import read_facts

_HEADINGS = ("where", "configuration", "value", "of no use because")
_LAYOUT = Layout(numbers=("value",), lists=("of no use because",))


def stale(
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="Brokers, separated by commas.")
    ],
    command_config: CommandConfig = None,
    output: TableOrJson = Output.TABLE,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show replication throttles that a reassignment left behind or that are missing on one side.

    Prints the commands that remove them, and changes nothing. Exit 4 when there is one, 1 when the cluster does not
    answer or does not allow to look, 2 for invalid arguments.
    """
    with reported_in_one_line():
        facts = asked(read_facts, bootstrap_server, command_config, timeout_ms)
        config = () if command_config is None else ("--command-config", str(command_config))
        report = throttles_document(facts, "--bootstrap-server", bootstrap_server, *config)
        if output is Output.JSON:
            typer.echo(json_text(report))
        else:
            throttles = facts.replication_throttles
            if throttles:
                cells = (
                    (throttle.where, throttle.config, throttle.value, "\n".join(throttle.stale) or "-")
                    for throttle in throttles
                )
                print_table(_HEADINGS, (tuple(map(printable, row[:3])) + row[3:] for row in cells), _LAYOUT)
            if facts.reassigning is not None:
                typer.echo(f"{facts.reassigning} partitions are being reassigned")
            for unread in facts.unread_of_throttles:
                typer.echo(printable(f"not read: {unread.what} ({unread.error}); needs {unread.needs}; {unread.means}"))
            if not report["commands"] and not facts.unread_of_throttles:
                typer.echo("no replication throttle is left over" if throttles else "nothing throttles replication")
            for command in report["commands"]:
                typer.echo(printable(command))
        if report["commands"]:
            raise typer.Exit(DIFFERS)
        if report["unread"]:
            raise typer.Exit(1)
