"""`headroom store check`: whether a server, a user's profile, a proxy and replicas fit, before the first row."""

import os
from typing import Annotated

import typer

from exporters.clickhouse.connection import Endpoint, password_of, tls_of
from exporters.printable import json_text
from headroom.cli.cluster import reported_in_one_line
from headroom.cli.options import Output, TableOrJson
from headroom.errors import ArgumentError

app = typer.Typer(help="The ClickHouse that keeps the rows.", no_args_is_help=True)
app.callback()(lambda: None)  # a group, although it has one command


@app.command("check")
def check_command(
    clickhouse: Annotated[
        str,
        typer.Option(
            metavar="URL,...",
            envvar="HEADROOM_CLICKHOUSE",
            help="As for `headroom serve`; the password is HEADROOM_CLICKHOUSE_PASSWORD.",
        ),
    ],
    cluster: Annotated[str, typer.Option(metavar="NAME", help="As store.cluster.name.")] = "",
    output: TableOrJson = Output.TABLE,
) -> None:
    """Check a ClickHouse before the first row is stored: its release, the user's profile and rights, proxies that drop
    settings or hide errors, several servers behind one address. Keeps nothing. Exit 1 when a check fails, 2 for invalid
    arguments."""
    from exporters.clickhouse.server_checks import server_findings  # it is slow

    with reported_in_one_line():
        try:
            nodes = Endpoint.parse_nodes(clickhouse, password_of(os.environ), tls_of(os.environ))
        except (ValueError, OSError) as exc:
            raise ArgumentError(f"cannot use --clickhouse: {exc}") from exc
        findings = [*server_findings(nodes, cluster)]
    if output is Output.JSON:
        rows = [
            {
                "result": finding.result.lower(),
                "check": finding.what,
                "advice": finding.needed_advice,
            }
            for finding in findings
        ]
        typer.echo(json_text(rows))
    else:
        for finding in findings:
            typer.echo("\n".join(finding.lines()))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
