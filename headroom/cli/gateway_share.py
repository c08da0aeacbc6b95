"""`headroom gateway share`: the share of the brokers' traffic that passes the gateways."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from exporters.printable import shortened
from exporters.text_table import Layout
from headroom.cli.output.tables import print_table
from headroom.cli.serve_api import ask
from quota_metrics.amounts import rate_text, share_text


def run_share(address: str, query: Mapping[str, str]) -> int:
    """Prints the share of the brokers' metered traffic that passes the gateways, per bucket and broker."""
    headings = ("client", "user", "quota", "seen", "brokers", "gateways", "bypassing", "broker")
    rows = ask(address, "/api/v1/gateway-share", query)
    if not rows:
        typer.echo("nothing to compare: no broker's JMX is read (quotas.jmx.targets), or no client is active")
        return 0
    cells = [
        (
            shortened(row["client_id"]) or "(all)",
            shortened(row["user"]) or "(all)",
            row["quota_key"],
            share_text(row["share"]),
            *(rate_text(row[name], row["quota_key"]) for name in ("broker_rate", "gateway_rate", "bypassing_rate")),
            str(row["broker_id"]),
        )
        for row in rows
    ]
    print_table(headings, cells, Layout(numbers=headings[3:], names=headings[:2], leave=("broker", "user", "quota")))
    return 0
