"""`headroom quotas what-if`: simulates other quotas on recorded usage. Reads the store, changes nothing.

The engine is quota_metrics.what_if, as for page and API.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS
from headroom.cli.cluster import clickhouse_of, reported_in_one_line
from headroom.cli.options import URL, Output, TableOrJson, Url
from headroom.cli.quotas.commands import ClientId, Defaults, Names, User, app, changes, who
from headroom.clock import now_ms
from headroom.errors import ArgumentError
from quota_metrics.config.broker_refusals import refusal
from quota_metrics.config.entities import CLIENT_ID, USER, QuotaAlteration
from quota_metrics.what_if.answer import (
    UNLIMITED_BUDGET,
    ReplayBudget,
    UnrecordedClusterError,
    WhatIfQuestion,
    answer,
    whole_minutes,
)
from quota_metrics.what_if.recording import TIMEOUT_S

ClusterName = Annotated[str, typer.Option(help="The cluster; optional when only one has usage.")]


@app.command()
def what_if(
    names: Names = None,
    defaults: Defaults = None,
    user: User = None,
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="As --defaults user.")] = False,
    client_id: ClientId = None,
    client_defaults: Annotated[bool, typer.Option("--client-defaults", help="As --defaults client-id.")] = False,
    add: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Quotas to set.")] = None,
    delete: Annotated[list[str] | None, typer.Option(metavar="KEY,...", help="Quotas to remove.")] = None,
    since: Annotated[str, typer.Option(help="The last whole minutes: 15m, 2h, 7d.")] = "6h",
    start: Annotated[str, typer.Option("--from", help="Instead of --since: ISO 8601 (UTC) or epoch seconds.")] = "",
    end: Annotated[str, typer.Option("--to", help="End of the range that begins with --from.")] = "",
    cluster: ClusterName = "",
    url: Url = URL,
    everything: Annotated[
        bool, typer.Option("--all", help="Examine all clients, however long it takes; without it the busiest.")
    ] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show which clients would have been throttled under changed quotas, how long, and which would not any more.

    Each client's recorded bytes are replayed through the broker's rate calculation under the changed limit; bytes that
    a throttled client could not send wait until the broker accepts them. Each broker has the window that it was read to
    have. The cluster is not changed.
    """
    from headroom.cli.output import what_if as what_if_output

    with reported_in_one_line():
        flags = [*(defaults or ()), *([USER] if user_defaults else ()), *([CLIENT_ID] if client_defaults else ())]
        entity = who(names, flags, None, user=user, client_id=client_id, ip=None).entity()
        alteration = QuotaAlteration(entity, changes(add, delete))
        if message := refusal(alteration):
            raise ArgumentError(message)
        if unrecorded := sorted(alteration.values.keys() - set(BYTE_KEYS)):
            cannot = ", ".join(unrecorded)
            raise ArgumentError(f"the recording has bytes: {' and '.join(BYTE_KEYS)} can be replayed, {cannot} cannot")
        from_ms, to_ms = time_range(since, start, end)
        question = WhatIfQuestion([alteration], from_ms, to_ms, cluster)
        budget = UNLIMITED_BUDGET if everything else ReplayBudget()
        with recording(url) as clickhouse:
            what_if_output.print_answer(answer(question, clickhouse, now_ms(), budget), output)


@contextmanager
def recording(url: str) -> Iterator[ClickHouse]:
    """The store to replay from. Raises ArgumentError for an invalid URL, password or cluster, ConnectionError when the
    server fails or has no usage."""
    try:
        yield clickhouse_of(url, TIMEOUT_S)
    except UnrecordedClusterError as exc:
        raise (ArgumentError if exc.ambiguous else ConnectionError)(str(exc)) from exc


def time_range(since: str, start: str = "", end: str = "") -> tuple[int, int]:
    """(from_ms, to_ms), of whole seconds. Raises ArgumentError."""
    from spark_jobs import time_range

    try:
        if bool(start) != bool(end):
            raise ArgumentError("--from and --to go together")
        if not start:
            return whole_minutes(now_ms(), time_range.parse_duration(since))
        start_ms, end_ms = time_range.parse_times(start, end)
    except ValueError as exc:
        raise ArgumentError(str(exc)) from exc
    return start_ms // 1000 * 1000, -(-end_ms // 1000) * 1000
