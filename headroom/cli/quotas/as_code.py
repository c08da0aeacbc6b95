"""`headroom quotas suggest | plan | apply | export | drift`: a file of quotas and subscriptions.

`suggest` is the job quota-suggest, whose `--output yaml` is such a file.
"""

import datetime
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from exporters.model import BYTE_KEYS
from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.options import URL, Output, Url, warn
from headroom.cli.output import quota_plan as output_of_plans
from headroom.cli.output.quota_plan import PlanReport
from headroom.cli.quotas.cluster_state import (
    ClusterState,
    apply_plan,
    read_state,
    read_what_is_there,
    valid_subscriptions,
    writable_state,
)
from headroom.cli.quotas.commands import BootstrapServer, FromFile, app, content_of, exit_when_incomplete, rules_of
from headroom.cli.quotas.what_if import ClusterName, recording, time_range
from headroom.clock import now_ms
from headroom.errors import ArgumentError
from quota_metrics.amounts import count_text
from quota_metrics.config.entities import misread_names
from quota_metrics.config.quota_file import DeclaredFile, declared_of, parse_declared_file, quota_file
from quota_metrics.config.quota_plan import (
    DeclaredSubscriptions,
    QuotaPlan,
    alterations_of,
    differences,
    quota_plan,
    undo,
)
from quota_metrics.what_if.answer import BUDGET_OF_PLAN, WhatIfQuestion, answer, harmed, hits, recorded_clients
from spark_jobs.cli import add_job

File = Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The quotas as YAML: docs/quotas.md.")]
OutputForm = Annotated[
    Literal[Output.TABLE, Output.JSON, Output.MARKDOWN], typer.Option(help="A table, JSON, or for a pull request.")
]
Prune = Annotated[bool, typer.Option("--prune", help="Also remove what the file does not name.")]

DIFFERS = 4  # exit status: the cluster differs, or the harm is above --max-harm

add_job(app, "suggest", "quota-suggest")


@app.command()
def plan(
    file: File,
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    since: Annotated[str, typer.Option(help="Replay the last whole minutes: 15m, 24h, 7d.")] = "24h",
    max_harm: Annotated[
        int | None, typer.Option(help="Exit with 4 when more clients would have been throttled.", min=0)
    ] = None,
    prune: Prune = False,
    replay: Annotated[bool, typer.Option(help="Replay recorded usage under the changed quotas.")] = True,
    cluster: ClusterName = "",
    url: Url = URL,
    output: OutputForm = Output.TABLE,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show what `apply` would change, which recorded clients each change hits, and who would have been throttled."""
    with reported_in_one_line():
        if max_harm is not None and not replay:
            raise ArgumentError("--max-harm needs the replay")
        planned, state, is_complete = _planned(
            file, bootstrap_server, from_file, command_config, timeout_ms, prune=prune
        )
        report = PlanReport(planned, max_harm, is_whole=is_complete)
        if planned.changes and replay:
            replayed = alterations_of([change for change in planned.changes if change.key in BYTE_KEYS])
            question = WhatIfQuestion(replayed, *time_range(since), cluster)
            with recording(url) as clickhouse:
                clients = recorded_clients(question, clickhouse, now_ms())
                report = replace(report, hits=hits(state.rules, planned.changes, clients))
                if replayed:
                    outcome = answer(question, clickhouse, now_ms(), BUDGET_OF_PLAN)
                    report = replace(report, answer=outcome, harmed=harmed(outcome))
        output_of_plans.print_report(report, output)
        exit_when_incomplete(is_complete)
        if not report.passes:
            raise typer.Exit(DIFFERS)


@app.command("apply")
def apply_file(
    file: File,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    expect: Annotated[
        str, typer.Option(metavar="BASE", help="Stop unless the cluster has the quotas that the plan saw: its `base`.")
    ] = "",
    undo_file: Annotated[
        Path | None, typer.Option("--undo", metavar="FILE", help="Write the undo there instead of standard output.")
    ] = None,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Make the cluster have the quotas and subscriptions of the file. Prints the undo: a file for `apply`."""
    with reported_in_one_line():
        planned, _, _ = _planned(file, bootstrap_server, None, command_config, timeout_ms, prune=prune, whole=True)
        if expect and expect != planned.base:
            raise ConnectionError(
                f"the cluster's quotas are not those that the plan saw ({planned.base}, not {expect})"
            )
        output_of_plans.print_changes(planned)
        if not planned.all_changes:
            return
        if not yes:
            typer.confirm("Apply?", abort=True, err=True)
        # Before the change, so that it is there when the change breaks off.
        quotas, subscriptions = undo(planned)
        heading = "Undo: headroom quotas apply -f FILE"
        undo_text = quota_file(quotas if quotas or not subscriptions else None, heading, subscriptions or None)
        _write(undo_text, undo_file)
        count = asked(lambda admin: apply_plan(admin, planned), bootstrap_server or "", command_config, timeout_ms)
        done = f"{count_text(len(planned.all_changes), 'value')} changed with {count_text(count, 'request')}"
        typer.echo(done, err=True)


@app.command()
def export(
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Write there; owner, comment and expiry in it are kept."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Print the cluster's quotas and subscriptions for plan, apply and drift."""
    with reported_in_one_line():
        before = _declared(file, whole=True)[0] if file is not None and file.exists() else DeclaredFile(None)
        if from_file is not None or bootstrap_server is None:
            state = rules_of(bootstrap_server, from_file, command_config, timeout_ms)
        else:
            state = asked(read_what_is_there, bootstrap_server, command_config, timeout_ms)
        if state.unread:
            warn(state.unread)
        held = _held(state, before)
        _write(quota_file(declared_of(held.rules, before.quotas or []), subscriptions=held.subscriptions), file)
        exit_when_incomplete(state.is_complete)


@app.command()
def drift(
    file: File,
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    output: OutputForm = Output.TABLE,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Exit with 4 when the cluster differs from the file's sections, also by values that the file does not name."""
    with reported_in_one_line():
        planned, _, is_complete = _planned(file, bootstrap_server, from_file, command_config, timeout_ms, prune=True)
        output_of_plans.print_drift(planned, output)
        exit_when_incomplete(is_complete)
        if planned.all_changes:
            raise typer.Exit(DIFFERS)


def _declared(path: Path, *, whole: bool = False) -> tuple[DeclaredFile, DeclaredSubscriptions | None]:
    """A file, and the subscriptions of its section, None without one. Its errors are named on standard error.

    `whole`: exits with 2 when a part of the file is invalid, because a cluster is not changed by half a file.
    """
    file = parse_declared_file(content_of(path))
    subscriptions = None
    if file.subscriptions is not None:
        valid, errors = valid_subscriptions(file.subscriptions)
        file.errors.extend(errors)
        subscriptions = valid if isinstance(file.subscriptions, dict) else None
    whole = whole or (file.quotas is None and subscriptions is None)  # there is no rest to compare
    warn(*file.ignored, *(file.errors if whole else [f"left out: {error}" for error in file.errors]))
    exit_when_incomplete(not (whole and file.errors))
    return file, subscriptions


def _planned(
    path: Path,
    bootstrap_server: str | None,
    from_file: Path | None,
    command_config: Path | None,
    timeout_ms: int,
    *,
    prune: bool,
    whole: bool = False,
) -> tuple[QuotaPlan, ClusterState, bool]:
    """The plan for the sections that the file has, the quotas in force, and whether nothing invalid was left out.

    A file without its invalid parts does not say what it does not name. Raises ArgumentError for subscriptions that are
    to be compared with a file, which has none.
    """
    file, subscriptions = _declared(path, whole=whole)
    if subscriptions is None:
        state = rules_of(bootstrap_server, from_file, command_config, timeout_ms)
    elif from_file is not None or bootstrap_server is None:
        raise ArgumentError("subscriptions are compared with a cluster: give --bootstrap-server")
    else:
        state = asked(lambda admin: read_state(admin, subscriptions=True), bootstrap_server, command_config, timeout_ms)
    held = _held(state, file)
    prune = prune and not file.errors
    today = datetime.datetime.now(datetime.UTC).date()
    planned = quota_plan(held.rules, file.quotas or [], today, prune=prune)
    if file.quotas is None:
        planned = replace(planned, changes=[], unmanaged=[])
    planned = replace(planned, base=state.base, has_subscriptions=subscriptions is not None)
    if subscriptions is not None:
        changes, unmanaged = differences(held.subscriptions or {}, subscriptions)
        if prune:
            changes, unmanaged = changes + unmanaged, []
        planned = replace(planned, subscription_changes=changes, unmanaged_subscriptions=unmanaged)
    return planned, state, not file.errors and state.is_complete


def _held(state: ClusterState, file: DeclaredFile) -> ClusterState:
    """What a file can hold; the rest is named, and stays as it is. Names that may be misread are said, of both."""
    held, others = writable_state(state)
    entities = [*held.rules, *(quota.entity for quota in file.quotas or ())]
    warn(*(f"left out: {line}" for line in others), *misread_names(entities))
    return held


def _write(content: str, path: Path | None) -> None:
    """On standard output without a path. Raises ArgumentError."""
    if path is None:
        sys.stdout.write(content)
        sys.stdout.flush()
        return
    try:
        path.write_text(content, "utf-8")
    except OSError as exc:
        raise ArgumentError(f"{path} cannot be written: {exc.strerror}") from exc
