"""`headroom cluster show`: the facts of a cluster that figures depend on."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from exporters.printable import json_text
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.http_address import HttpAddress
from headroom.cli.output.forms import Output
from headroom.errors import ArgumentError

app = typer.Typer(help="The cluster that Headroom stands before.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The cluster that Headroom stands before."""


@app.command()
def show(
    upstream: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Ask these brokers, without `headroom serve`.")
    ] = None,
    http: HttpAddress = "127.0.0.1:9644",
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = 10_000,
    output: Annotated[Literal[Output.TABLE, Output.JSON], typer.Option(help="A table, or JSON.")] = Output.TABLE,
) -> None:
    """Show versions, quota windows, callback class, limits per address, replication throttles, ACLs with hosts.

    Also what could not be read, and what that means. Exit 1 when nobody answers, 2 for invalid arguments.
    """
    from headroom.cli.output.cluster import print_facts
    from headroom.cli.serve_api import ask
    from quota_metrics.cluster.document import document
    from quota_metrics.cluster.reading import read_facts

    with reported_in_one_line():
        if upstream is not None:
            facts = document(asked(read_facts, upstream, command_config, timeout_ms))
        else:
            facts = ask(http, "/api/v1/cluster", {})
            if not isinstance(facts, dict):
                raise ArgumentError(f"{http} is a sink without a cluster; name brokers with --upstream")
        if output is Output.JSON:
            typer.echo(json_text(facts))
        else:
            print_facts(facts)
