"""`headroom quotas plan | apply | export | drift`: the quotas of a file (quota_metrics.config.quota_file)."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from headroom.cli.cluster import CommandConfig, TimeoutMs, asked, reported_in_one_line
from headroom.cli.output import quota_plan as output_of_plans
from headroom.cli.output.forms import Output
from headroom.cli.output.quota_plan import PlanReport
from headroom.cli.quotas.commands import BootstrapServer, FromFile, app, content_of, rules_of
from headroom.cli.quotas.what_if import URL, ClusterName, Url, answered, clients_of, time_range
from headroom.errors import ArgumentError
from quota_metrics.config.entities import Altered, QuotaAlteration, Rules, text
from quota_metrics.config.quota_file import DeclaredQuota, DeclaredQuotaError, declared_of, parse_quota_file, quota_file
from quota_metrics.config.quota_plan import (
    QuotaPlan,
    alterations_of,
    fingerprint,
    quota_plan,
    requests,
    undo,
)
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.simulation.outcomes import KEYS
from quota_metrics.what_if.answer import ReplayBudget, WhatIfQuestion
from quota_metrics.what_if.harm import harmed, hits

File = Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The quotas as YAML: docs/quotas.md.")]
Prune = Annotated[bool, typer.Option("--prune", help="Also remove what the file does not name.")]

DIFFERS = 4  # exit status: the cluster differs, or the harm is above --max-harm
_TRIES, _PAUSE_S = 150, 0.2  # until a broker has followed its controller
_BUDGET = ReplayBudget(clients=100_000, rows=20_000_000, requests=20_000_000)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the quotas in force are: a cluster, or KIP-546's JSON in a file."""

    bootstrap_server: str | None
    from_file: Path | None
    command_config: Path | None
    timeout_ms: int

    def rules(self) -> Rules:
        return rules_of(self.bootstrap_server, self.from_file, self.command_config, self.timeout_ms)


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
        rules = _Source(bootstrap_server, from_file, command_config, timeout_ms).rules()
        planned = quota_plan(rules, declared, _today(), prune=prune)
        report = PlanReport(planned, max_harm)
        if planned.changes and replay:
            report = _replayed(report, rules, _question(planned, since, cluster), url)
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
    timeout_ms: TimeoutMs = 30_000,
) -> None:
    """Make the cluster have the quotas of the file. Prints the undo: a file for `apply`."""
    with reported_in_one_line():
        source = _Source(bootstrap_server, None, command_config, timeout_ms)
        declared, rules = _declared(file), source.rules()
        planned = quota_plan(rules, declared, _today(), prune=prune)
        if expect and expect != planned.base:
            raise ConnectionError(
                f"the cluster's quotas are not those that the plan saw ({planned.base}, not {expect})"
            )
        output_of_plans.print_changes(planned)
        if not planned.changes:
            return
        if not yes:
            typer.confirm("Apply?", abort=True, err=True)
        _write_undo(planned, undo_file)
        count = asked(lambda admin: _apply(admin, planned), bootstrap_server or "", command_config, timeout_ms)
        typer.echo(f"{len(planned.changes)} values changed with {count} requests")


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
    """Print the cluster's quotas as a file for plan, apply and drift."""
    with reported_in_one_line():
        known = _declared(file) if file is not None and file.exists() else []
        rules = _Source(bootstrap_server, from_file, command_config, timeout_ms).rules()
        with _every_error():
            written = quota_file(declared_of(rules, known))
        _write(written, file)


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
    """Exit with 4 when the cluster's quotas differ from the file, also by values that the file does not name."""
    with reported_in_one_line():
        declared = _declared(file)
        rules = _Source(bootstrap_server, from_file, command_config, timeout_ms).rules()
        planned = quota_plan(rules, declared, _today(), prune=True)
        output_of_plans.print_drift(planned, output)
        if planned.changes:
            raise typer.Exit(DIFFERS)


async def _apply(admin: KafkaAdmin, planned: QuotaPlan) -> int:
    """Checks all changes before it makes the first; returns the number of requests. Raises ClusterError,
    ConnectionError."""
    if fingerprint(await admin.describe_client_quotas()) != planned.base:
        raise ConnectionError("the cluster's quotas changed after they were read: nothing was applied, plan again")
    batches = list(requests(planned.alterations))
    for batch in batches:
        _check(await admin.alter_client_quotas(batch, validate_only=True), "nothing was applied")
    for number, batch in enumerate(batches):
        _check(
            await admin.alter_client_quotas(batch), f"{number} of {len(batches)} requests were applied, see the undo"
        )
    await _until_in_force(admin, planned.alterations)
    return len(batches)


async def _until_in_force(admin: KafkaAdmin, alterations: list[QuotaAlteration]) -> None:
    """A broker follows its controller with a delay. Raises ConnectionError."""
    left: list[str] = []
    for _ in range(_TRIES):
        left = _left(await admin.describe_client_quotas(), alterations)
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
    answer = answered(question, url, _BUDGET)
    return report.with_answer(answer, harmed(answer))


def _declared(file: Path) -> list[DeclaredQuota]:
    with _every_error():
        return parse_quota_file(content_of(file))


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
    _write(quota_file(undo(planned.changes), "Undo: headroom quotas apply -f FILE"), path)


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
