"""Prints the result of `headroom subscriptions preview` as a table."""

from __future__ import annotations

import typer

from exporters.text_table import Layout
from headroom.cli.output.tables import print_table
from headroom.subscription_preview import Preview

_HEADINGS = ("client id", "principal", "software", "address", "cluster", "points per push")
_LAYOUT = Layout(
    numbers=_HEADINGS[-1:], names=("client id", "principal", "software"), leave=("cluster", "address", "software")
)


def print_preview(preview: Preview, since: str) -> None:
    """A table and a summary line."""
    rows = [
        (
            client.client_id,
            client.principal,
            f"{client.software_name} {client.software_version}",
            client.source_address,
            client.cluster,
            f"{'' if client.sent_before else '~'}{client.points}",
        )
        for client in preview.clients
    ]
    if rows:
        print_table(_HEADINGS, rows, _LAYOUT)
    typer.echo(
        f"{preview.matching} of {preview.known} client instances seen in the last {since} match:"
        f" {preview.points_per_second:.1f} points per second at {preview.interval_ms} ms"
    )
