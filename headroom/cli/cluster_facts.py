"""`headroom cluster show`: the facts of a cluster that figures depend on."""

from typing import Annotated, Any

import typer

from exporters.printable import json_text, printable
from exporters.text_table import Layout
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.options import HTTP, HttpAddress, Output, TableOrJson
from headroom.errors import ArgumentError

app = typer.Typer(help="The cluster that Headroom stands before.", no_args_is_help=True)

_HEADINGS = ("broker", "release", "quota window", "callback class", "threads", "telemetry.max.bytes", "limits")
_LAYOUT = Layout(numbers=("broker", "telemetry.max.bytes"), lists=("limits",))
app.callback()(lambda: None)  # a group, although it has one command


@app.command()
def show(
    upstream: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Ask these brokers, without `headroom serve`.")
    ] = None,
    http: HttpAddress = HTTP,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = 10_000,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show versions, quota windows, callback class, limits per address, replication throttles, ACLs with hosts.

    Also what could not be read, and what that means. Exit 1 when nobody answers, 2 for invalid arguments.
    """
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
            _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    from headroom.cli.output.tables import print_table  # slow to import

    version = f", metadata.version {facts['metadata_version']}" if facts["metadata_version"] else ""
    typer.echo(f"cluster {printable(facts['cluster_id'])}: Kafka {facts['release']}{version}")
    rows = []
    for broker in facts["brokers"]:
        limits = broker["connection_limits"] | broker["replication_throttles"]
        samples = broker["quota_window_num"]
        rows.append(
            (
                str(broker["broker_id"]),
                broker["release"],
                "not read" if samples is None else f"{samples} x {broker['quota_window_size_ms'] / 1000:g} s",
                "not read" if broker["callback_class"] is None else broker["callback_class"] or "-",
                f"{_text(broker['io_threads'])} io, {_text(broker['network_threads'])} network",
                _text(broker["telemetry_max_bytes"]),
                "\n".join(f"{name}={value}" for name, value in sorted(limits.items())) or "-",
            )
        )
    print_table(_HEADINGS, rows, _LAYOUT)
    for acl in facts["host_acls"]:
        line = f"ACL: {acl['permission']} {acl['principal']} from {acl['host']} {acl['operation']} {acl['resource']}"
        typer.echo(printable(line))
    for remark in facts["remarks"]:
        typer.echo(printable(f"- {remark}"))
    for unread in facts["unread"]:
        typer.echo(printable(f"- not read: {unread['what']} ({unread['error']}); needs {unread['needs']}"))
        typer.echo(f"  {unread['means']}")
    if not facts["remarks"] and not facts["unread"]:
        typer.echo("nothing differs from Kafka's defaults")


def _text(value: object) -> str:
    return "?" if value is None else str(value)
