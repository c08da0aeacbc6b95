"""`headroom quotas suggest | plan | apply | export | drift`: a file of quotas, subscriptions and SCRAM users.

`suggest` is the job quota-suggest, whose `--output yaml` is such a file.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.output import quota_plan as output_of_plans
from headroom.cli.output.forms import Output
from headroom.cli.output.quota_plan import PlanReport
from headroom.cli.quotas.commands import BootstrapServer, FromFile, app, content_of, rules_of
from headroom.cli.quotas.sections import (
    ClusterState,
    apply_resources,
    check_resources,
    credentials_to_set,
    declared_resources,
    differences,
    exported_sections,
    read_state,
    read_what_is_there,
    undo_sections,
    writable_state,
)
from headroom.cli.quotas.what_if import URL, ClusterName, Url, answered, clients_of, time_range
from headroom.errors import ArgumentError
from quota_metrics.amounts import count_text
from quota_metrics.config.entities import Altered, QuotaAlteration, Rules, text
from quota_metrics.config.file_plan import DeclaredResources, FileSection, ResourceDifference
from quota_metrics.config.quota_file import (
    DeclaredFile,
    DeclaredQuotaError,
    declared_of,
    parse_declared_file,
    quota_file,
)
from quota_metrics.config.quota_plan import QuotaPlan, alterations_of, quota_plan, requests, undo
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.scram_users import ScramCredential
from quota_metrics.simulation.outcomes import KEYS
from quota_metrics.what_if.answer import ReplayBudget, WhatIfQuestion
from quota_metrics.what_if.harm import harmed, hits
from spark_jobs.cli import add_job

File = Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The quotas as YAML: docs/quotas.md.")]
Prune = Annotated[bool, typer.Option("--prune", help="Also remove what the file does not name.")]

DIFFERS = 4  # exit status: the cluster differs, or the harm is above --max-harm
_TRIES, _PAUSE_S = 150, 0.2  # until a broker has followed its controller

add_job(app, "suggest", "quota-suggest")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the quotas in force are: a cluster, or KIP-546's JSON in a file."""

    bootstrap_server: str | None
    from_file: Path | None
    command_config: Path | None
    timeout_ms: int

    def state(self, sections: Sequence[FileSection] = ()) -> ClusterState:
        """Quotas, and these sections of a cluster."""
        if not sections:
            return ClusterState(rules_of(self.bootstrap_server, self.from_file, self.command_config, self.timeout_ms))
        if self.from_file is not None or self.bootstrap_server is None:
            raise ArgumentError(f"{' and '.join(sections)} are compared with a cluster: give --bootstrap-server")
        return asked(
            lambda admin: read_state(admin, sections), self.bootstrap_server, self.command_config, self.timeout_ms
        )

    def everything(self) -> ClusterState:
        """A file has only quotas."""
        if self.from_file is not None or self.bootstrap_server is None:
            return self.state()
        return asked(read_what_is_there, self.bootstrap_server, self.command_config, self.timeout_ms)


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
    output: Annotated[
        Literal[Output.TABLE, Output.JSON, Output.MARKDOWN], typer.Option(help="A table, JSON, or for a pull request.")
    ] = Output.TABLE,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Show what `apply` would change, which recorded clients each change hits, and who would have been throttled."""
    with reported_in_one_line():
        if max_harm is not None and not replay:
            raise ArgumentError("--max-harm needs the replay")
        declared = _declared(file)
        state = _Source(bootstrap_server, from_file, command_config, timeout_ms).state(list(declared.resources))
        planned = _plan(state, declared, prune=prune)
        report = PlanReport(planned, max_harm)
        if planned.changes and replay:
            report = _replayed(report, state.rules, _question(planned, since, cluster), url)
        output_of_plans.print_report(report, output)
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
    set_passwords: Annotated[
        bool, typer.Option("--set-passwords", help="Set the password of every SCRAM user of the file, also unchanged.")
    ] = False,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Make the cluster have the quotas, subscriptions and SCRAM users of the file. Prints the undo: a file for `apply`.

    A password is set only with a credential that is new or has other iterations, or with --set-passwords.
    """
    with reported_in_one_line():
        declared = _declared(file)
        state = _Source(bootstrap_server, None, command_config, timeout_ms).state(list(declared.resources))
        planned = _plan(state, declared, prune=prune)
        if expect and expect != planned.base:
            raise ConnectionError(
                f"the cluster's quotas are not those that the plan saw ({planned.base}, not {expect})"
            )
        output_of_plans.print_changes(planned)
        users = declared.file.scram_users or []
        to_set = credentials_to_set(users, planned.resource_changes, set_passwords=set_passwords)
        output_of_plans.print_passwords(len(to_set), planned)
        if not planned.count and not to_set:
            return
        if not yes:
            typer.confirm("Apply?", abort=True, err=True)
        _write_undo(planned, undo_file)
        count = asked(lambda admin: _apply(admin, planned, to_set), bootstrap_server or "", command_config, timeout_ms)
        typer.echo(f"{count_text(planned.count, 'value')} changed with {count_text(count, 'request')}")


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
    """Print the cluster's quotas, subscriptions and SCRAM users (without passwords) for plan, apply and drift."""
    with reported_in_one_line():
        known = _declared(file).file if file is not None and file.exists() else DeclaredFile(None)
        state = _Source(bootstrap_server, from_file, command_config, timeout_ms).everything()
        for line in state.unread:
            typer.echo(f"headroom: {line}", err=True)
        held = _held(state)
        sections = exported_sections(held, known.scram_users or [])
        _write(quota_file(declared_of(held.rules, known.quotas or []), sections=sections), file)


@app.command()
def drift(
    file: File,
    bootstrap_server: BootstrapServer = None,
    from_file: FromFile = None,
    command_config: CommandConfig = None,
    output: Annotated[
        Literal[Output.TABLE, Output.JSON, Output.MARKDOWN], typer.Option(help="A table, JSON, or for a pull request.")
    ] = Output.TABLE,
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Exit with 4 when the cluster differs from the sections of the file, also by values that the file does not name.

    Of SCRAM users presence and iterations are compared: a password cannot be.
    """
    with reported_in_one_line():
        declared = _declared(file)
        state = _Source(bootstrap_server, from_file, command_config, timeout_ms).state(list(declared.resources))
        planned = _plan(state, declared, prune=True)
        output_of_plans.print_drift(planned, output)
        if planned.count:
            raise typer.Exit(DIFFERS)


async def _apply(admin: KafkaAdmin, planned: QuotaPlan, to_set: Sequence[ScramCredential]) -> int:
    """Checks all changes before it makes the first; returns the number of requests. Raises ClusterError,
    ConnectionError."""
    if (await read_state(admin, planned.sections)).base != planned.base:
        raise ConnectionError("the cluster's quotas changed after they were read: nothing was applied, plan again")
    batches = list(requests(planned.alterations))
    for batch in batches:
        _check(await admin.alter_client_quotas(batch, validate_only=True), "nothing was applied")
    await check_resources(admin, planned.resource_changes)
    for number, batch in enumerate(batches):
        _check(
            await admin.alter_client_quotas(batch), f"{number} of {len(batches)} requests were applied, see the undo"
        )
    count = len(batches) + await apply_resources(admin, planned.resource_changes, to_set)
    await _until_in_force(admin, planned)
    return count


async def _until_in_force(admin: KafkaAdmin, planned: QuotaPlan) -> None:
    """A broker follows its controller with a delay. Raises ConnectionError."""
    left: list[str] = []
    for _ in range(_TRIES):
        state = await read_state(admin, planned.sections)
        left = _left(state.rules, planned.alterations) + _left_of_sections(state, planned.resource_changes)
        if not left:
            return
        await asyncio.sleep(_PAUSE_S)
    raise ConnectionError(f"after the change other values are in force: {', '.join(left[:20])}")


def _check(results: list[Altered], then: str) -> None:
    refused = [f"{text(each.entity)}: {each.error_message or each.error_code}" for each in results if each.error_code]
    if refused:
        raise ConnectionError(f"{then}; refused: {'; '.join(refused)}")


def _left(rules: Rules, alterations: list[QuotaAlteration]) -> list[str]:
    """Values that are not as they were set."""
    return [
        f"{key} of {text(alteration.entity)}"
        for alteration in alterations
        for key, value in alteration.values.items()
        if rules.get(alteration.entity, {}).get(key) != value
    ]


def _left_of_sections(state: ClusterState, changes: Sequence[ResourceDifference]) -> list[str]:
    return [
        f"{each.key} of {each.section} {each.name}"
        for each in changes
        if state.resources[each.section].get(each.name, {}).get(each.key) != each.after
    ]


def _question(planned: QuotaPlan, since: str, cluster: str) -> WhatIfQuestion:
    """Of the changes whose usage is recorded."""
    replayed = [change for change in planned.changes if change.key in KEYS]
    return WhatIfQuestion(alterations_of(replayed), *time_range(since), cluster)


def _replayed(report: PlanReport, rules: Rules, question: WhatIfQuestion, url: str) -> PlanReport:
    """With the clients that the changes hit, and the answer of the what-if engine."""
    changes = report.plan.changes
    report = report.with_hits(hits(rules, changes, clients_of(question, url)))
    if not question.alterations:
        return report
    answer = answered(question, url, ReplayBudget.of_plan())
    return report.with_answer(answer, harmed(answer))


@dataclass(frozen=True, slots=True)
class _Declared:
    file: DeclaredFile
    resources: Mapping[FileSection, DeclaredResources]


def _declared(file: Path) -> _Declared:
    with _every_error():
        found = parse_declared_file(content_of(file))
        return _Declared(found, declared_resources(found))


def _plan(state: ClusterState, declared: _Declared, *, prune: bool) -> QuotaPlan:
    """Of the sections that the file has."""
    held = _held(state)
    quotas = quota_plan(held.rules, declared.file.quotas or [], _today(), prune=prune)
    if declared.file.quotas is None:
        quotas = replace(quotas, changes=[], unmanaged=[])
    changes, unmanaged = differences(held, declared.resources, prune=prune)
    return replace(
        quotas,
        base=state.base,
        resource_changes=changes,
        unmanaged_resources=unmanaged,
        sections=list(declared.resources),
    )


def _held(state: ClusterState) -> ClusterState:
    """What a file can hold; the rest is named, and stays as it is."""
    held, others = writable_state(state)
    for line in others:
        typer.echo(f"headroom: left out: {line}", err=True)
    return held


@contextmanager
def _every_error() -> Iterator[None]:
    """Exits with 2 after one line for each error of a file."""
    try:
        yield
    except DeclaredQuotaError as exc:
        for line in exc.errors:
            typer.echo(f"headroom: {line}", err=True)
        raise typer.Exit(2) from exc


def _write_undo(planned: QuotaPlan, path: Path | None) -> None:
    """Before the change, so that it is there when the change breaks off."""
    sections = undo_sections(planned.resource_changes)
    quotas = undo(planned.changes)
    _write(
        quota_file(quotas if quotas or not sections else None, "Undo: headroom quotas apply -f FILE", sections), path
    )


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


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
