"""`headroom quotas what-if`: simulates other quotas on recorded usage. Reads the store, changes nothing.

The replay itself is quota_metrics/simulation/replay.py.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Literal

import typer

from exporters.clickhouse.connection import password_of
from headroom.cli.cluster import reported_in_one_line
from headroom.cli.output.forms import Output
from headroom.cli.quotas.arguments import changes, who
from headroom.cli.quotas.commands import ClientId, Defaults, Names, User, app
from headroom.errors import ArgumentError
from quota_metrics.config.entities import CLIENT_ID, USER, Alteration
from quota_metrics.config.validation import refusal
from quota_metrics.simulation.outcomes import KEYS, Outcome, WhatIf, Window


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
    since: Annotated[str, typer.Option(help="From this long ago until now: 90s, 15m, 2h, 7d.")] = "6h",
    start: Annotated[str, typer.Option("--from", help="Instead of --since: ISO 8601 (UTC) or epoch seconds.")] = "",
    end: Annotated[str, typer.Option("--to", help="End of the range that begins with --from.")] = "",
    cluster: Annotated[str | None, typer.Option(help="The cluster; optional when only one has usage.")] = None,
    url: Annotated[str, typer.Option(envvar="HEADROOM_URL", help="SQL endpoint or ClickHouse server.")] = (
        "http://127.0.0.1:8123"
    ),
    window_num: Annotated[int, typer.Option(help="quota.window.num of the brokers.", min=2)] = 11,
    window_size_ms: Annotated[int, typer.Option(help="quota.window.size.seconds of them, in ms.", min=1)] = 1000,
    output: Annotated[Literal[Output.TABLE, Output.JSON], typer.Option(help="A table, or JSON.")] = Output.TABLE,
) -> None:
    """Show which clients would have been throttled under changed quotas, how long, and which would not any more.

    Each client's recorded bytes are replayed through the broker's rate calculation under the changed limit; bytes that
    a throttled client could not send wait until the broker accepts them. The cluster is not changed.
    """
    from headroom.cli.output import what_if as what_if_output
    from quota_metrics.simulation.outcome_text import worst_first

    with reported_in_one_line():
        flags = [*(defaults or ()), *([USER] if user_defaults else ()), *([CLIENT_ID] if client_defaults else ())]
        entity = who(names, flags, None, user=user, client_id=client_id, ip=None).entity()
        alteration = Alteration(entity, changes(add, delete))
        _check(alteration)
        from_ms, to_ms = _time_range(since, start, end)
        window = Window(window_num, window_size_ms)
        outcomes = worst_first(_outcomes(url, cluster, alteration, from_ms, to_ms, window))
        if output is Output.JSON:
            what_if_output.print_json(outcomes)
        else:
            what_if_output.print_outcomes(outcomes, from_ms, to_ms)


def _check(alteration: Alteration) -> None:
    """Raises ArgumentError for changes that a broker would refuse, and for those that cannot be replayed."""
    message = refusal(alteration)
    if message:
        raise ArgumentError(message)
    other = sorted(alteration.values.keys() - set(KEYS))
    if other:
        raise ArgumentError(f"the recording has bytes: {' and '.join(KEYS)} can be replayed, {', '.join(other)} cannot")


def _time_range(since: str, start: str, end: str) -> tuple[int, int]:
    from spark_jobs import time_range

    try:
        if bool(start) != bool(end):
            raise ArgumentError("--from and --to go together")
        now_ms = time.time_ns() // 1_000_000
        when = time_range.between(start, end, 1) if start else time_range.since(since, now_ms, 1)
    except ValueError as exc:
        raise ArgumentError(str(exc)) from exc
    return when.from_ms, when.to_ms


def _outcomes(
    url: str, cluster: str | None, alteration: Alteration, from_ms: int, to_ms: int, window: Window
) -> list[Outcome]:
    """Raises ArgumentError for an invalid URL or password, ConnectionError when the server fails."""
    from headroom.cli.quotas.recorded_usage import Recording
    from spark_jobs.clickhouse.client import ClickHouse, SourceError

    try:
        recording = Recording(ClickHouse(url, password_of(os.environ)), sorted(alteration.values), from_ms, to_ms)
    except (ValueError, OSError) as exc:
        raise ArgumentError(str(exc)) from exc
    try:
        name = _cluster(recording.clusters(), cluster)
        seen, usual_ms, row_count = recording.seen(name)
        history = recording.history(name)
        question = WhatIf(history, alteration, seen, from_ms=from_ms, to_ms=to_ms, usual_ms=usual_ms, window=window)
        question.replay(recording.usage(name, question.names, row_count))
    except SourceError as exc:
        raise ConnectionError(str(exc)) from exc
    return question.outcomes()


def _cluster(recorded: list[str], wanted: str | None) -> str:
    """Raises ConnectionError when there is no usage to replay, ArgumentError when the cluster is ambiguous."""
    if not recorded:
        raise ConnectionError("no usage of these quotas was recorded in this time")
    if wanted is None and len(recorded) > 1:
        raise ArgumentError(f"name one with --cluster: {', '.join(recorded)}")
    if wanted is not None and wanted not in recorded:
        raise ConnectionError(
            f"no usage of cluster {wanted!r} was recorded in this time, only of {', '.join(recorded)}"
        )
    return recorded[0] if wanted is None else wanted
