"""The facts of a cluster on standard output, from their JSON form (quota_metrics.cluster.document)."""

from __future__ import annotations

from typing import Any

import typer

from exporters.printable import printable
from exporters.text_table import Layout
from headroom.cli.output.tables import print_table

_HEADINGS = ("broker", "release", "quota window", "callback class", "threads", "telemetry.max.bytes", "limits")
_LAYOUT = Layout(numbers=("broker", "telemetry.max.bytes"), lists=("limits",))


def print_facts(facts: dict[str, Any]) -> None:
    """A table of the brokers, then what differs from Kafka's defaults and what could not be read."""
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
