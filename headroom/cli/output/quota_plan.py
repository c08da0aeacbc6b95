"""Prints plans and drift of quotas: tables, JSON, markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from exporters.model import BYTE_KEYS
from exporters.printable import json_text, printable, shortened
from exporters.text_table import Layout
from headroom.cli.options import Output
from headroom.cli.output import quotas as quota_output
from headroom.cli.output.tables import print_table
from headroom.cli.output.what_if import HEADINGS, LAYOUT, client_rows
from quota_metrics.amounts import count_text
from quota_metrics.config.entities import Entity, text
from quota_metrics.config.quota_plan import QuotaDifference, QuotaPlan, SubscriptionDifference
from quota_metrics.simulation.outcomes import ClientOutcome
from quota_metrics.what_if.answer import Names, WhatIfAnswer
from quota_metrics.what_if.document import client_document, coverage_text, document, warnings

_CHANGES = ("action", "entity", "quota", "before", "after", "clients", "owner", "why")
_LAYOUT = Layout(numbers=("before", "after", "cluster", "file"), below=("clients", "why"))
_SHOWN_CLIENTS = 20
_SHOWN_ROWS = 200  # of a table or of markdown; JSON has all


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan and its consequences. `hits`: of each changed value, None without a recording."""

    plan: QuotaPlan
    max_harm: int | None
    hits: Mapping[tuple[Entity, str], list[Names]] | None = None
    answer: WhatIfAnswer | None = None
    harmed: Sequence[ClientOutcome] = field(default=())
    is_whole: bool = True  # no entry of the file was left out

    @property
    def harmed_clients(self) -> int:
        """Each (user, client-id) counts once."""
        return len({(outcome.client.user, outcome.client.client_id) for outcome in self.harmed})

    @property
    def is_complete(self) -> bool:
        return self.answer is None or self.answer.covers.clients == self.answer.covers.of_clients

    @property
    def passes(self) -> bool:
        """Whether the harm is within --max-harm. Clients that were not examined may be harmed, by entries that were
        not read, too."""
        return self.max_harm is None or (self.harmed_clients <= self.max_harm and self.is_complete and self.is_whole)

    @property
    def not_replayed(self) -> list[str]:
        """Changed keys of which no usage is recorded."""
        return sorted({change.key for change in self.plan.changes} - set(BYTE_KEYS))

    def clients(self, change: QuotaDifference) -> list[Names]:
        return [] if self.hits is None else self.hits.get((change.holder, change.key), [])

    @property
    def summary(self) -> list[str]:
        changes = len(self.plan.all_changes)
        lines = [f"{count_text(changes, 'change')} of values" if changes else "nothing changes"]
        if not self.is_whole:
            lines.append("not all could be read: what was left out is on standard error")
        unmanaged = len(self.plan.unmanaged) + len(self.plan.unmanaged_subscriptions)
        if unmanaged:
            lines.append(f"not in the file, and kept without --prune: {count_text(unmanaged, 'value')}")
        if self.answer is not None:
            lines.append(
                f"{count_text(self.harmed_clients, 'client')} would have been throttled for longer than recorded"
            )
            lines.append(f"the replay {coverage_text(document(self.answer, 0)['covers'])}")
            lines += warnings(self.answer)
        if self.not_replayed:
            lines.append(f"not replayed, because the recording has no usage of them: {', '.join(self.not_replayed)}")
        if self.max_harm is not None and self.harmed_clients > self.max_harm:
            lines.append(f"that is more than --max-harm {self.max_harm}")
        if not self.passes and not self.is_complete:
            lines.append("not all clients were examined: those that were not may be harmed")
        return lines


def print_report(report: PlanReport, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json_text(_report_document(report)))
        return
    clients = [client_document(outcome) for outcome in report.harmed[:_SHOWN_ROWS]]
    if output is Output.MARKDOWN:
        typer.echo("## Plan of quotas\n")
        _markdown(_CHANGES, _change_rows(report))
        if clients:
            typer.echo("\n### Clients that would have been throttled\n")
            _markdown(HEADINGS, client_rows(clients))
        typer.echo("\n" + "\n".join(f"- {printable(line)}" for line in _closing(report)))
        return
    if report.plan.all_changes:
        print_table(_CHANGES, _change_rows(report), _LAYOUT)
    if clients:
        print_table(HEADINGS, client_rows(clients), LAYOUT)
    typer.echo("\n".join(_closing(report)))


def print_changes(plan: QuotaPlan) -> None:
    """On standard error, as standard output has the undo."""
    for change in plan.all_changes:
        subject, key, before, after, _, why = _cells(change)
        values = f"{before} -> {after} ({why})" if why else f"{before} -> {after}"
        typer.echo(printable(f"{change.action} {subject} {key}: {values}"), err=True)
    if not plan.all_changes:
        typer.echo("nothing to change", err=True)


def print_drift(plan: QuotaPlan, output: Output) -> None:
    """`plan`: what would make the cluster equal to the file."""
    headings = ("entity", "quota", "cluster", "file", "owner", "why")
    changes = plan.all_changes
    rows = [_cells(change) for change in changes]
    if output is Output.JSON:
        typer.echo(json_text([_document(change) for change in changes]))
    elif not rows:
        typer.echo(
            "the cluster has what the file has" if plan.has_subscriptions else "the cluster has the quotas of the file"
        )
    elif output is Output.MARKDOWN:
        _markdown(headings, rows)
    else:
        print_table(headings, rows, _LAYOUT)


def _change_rows(report: PlanReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for change in report.plan.changes[:_SHOWN_ROWS]:
        *values, owner, why = _cells(change)
        clients = report.clients(change)
        names = ", ".join(shortened(f"{user}/{client_id}") for user, client_id in clients[:3])
        hit = f"{len(clients)}" + (f": {names}" if names else "") + (", ..." if len(clients) > 3 else "")
        rows.append((change.action, *values, "unknown" if report.hits is None else hit, owner, why))
    for resource in report.plan.subscription_changes[:_SHOWN_ROWS]:
        *values, owner, why = _cells(resource)
        rows.append((resource.action, *values, "-", owner, why))
    return rows


def _cells(change: QuotaDifference | SubscriptionDifference) -> tuple[str, str, str, str, str, str]:
    """Whose value it is, its key, before and after, owner, why."""
    holder = f"subscription {change.holder}" if isinstance(change.holder, str) else text(change.holder)
    before, after = (
        "-" if side is None else side if isinstance(side, str) else quota_output.number(side)
        for side in (change.before, change.after)
    )
    return holder, change.key, before, after, change.owner, change.why


def _closing(report: PlanReport) -> list[str]:
    beyond = max(len(report.plan.changes), len(report.plan.subscription_changes), len(report.harmed)) > _SHOWN_ROWS
    cut = [f"the first {_SHOWN_ROWS} rows are shown, --output json has all"] if beyond else []
    return [*cut, *report.summary, f"base: {report.plan.base}"]


def _report_document(report: PlanReport) -> dict[str, Any]:
    return {
        "base": report.plan.base,
        "changes": [
            {
                **_document(change),
                "clients": None if report.hits is None else len(report.clients(change)),
                "first_clients": [list(names) for names in report.clients(change)[:_SHOWN_CLIENTS]],
            }
            for change in report.plan.changes
        ],
        "unmanaged": [_document(change) for change in report.plan.unmanaged],
        "resource_changes": [_document(resource) for resource in report.plan.subscription_changes],
        "unmanaged_resources": [_document(resource) for resource in report.plan.unmanaged_subscriptions],
        "what_if": None if report.answer is None else document(report.answer, 0),
        "harmed_clients": None if report.answer is None else report.harmed_clients,
        "harmed": [client_document(outcome) for outcome in report.harmed],
        "not_replayed": report.not_replayed,
        "max_harm": report.max_harm,
        "passes": report.passes,
        "summary": report.summary,
    }


def _document(change: QuotaDifference | SubscriptionDifference) -> dict[str, Any]:
    values: dict[str, Any] = {"before": change.before, "after": change.after}
    if isinstance(change.holder, str):
        named = {"section": "subscriptions", "name": change.holder, "key": change.key}
        return {"action": change.action, **named, **values, "why": change.why}
    quota = {"entity": dict(change.holder), "quota_key": change.key}
    return {"action": change.action, **quota, **values, "owner": change.owner, "why": change.why}


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    typer.echo("| " + " | ".join(headings) + " |")
    typer.echo("|" + "---|" * len(headings))
    for row in rows:
        # Names are made by clients: nothing in them may be markup.
        cells = (re.sub(r"[\\`*_\[\]<>|!#&]", r"\\\g<0>", printable(cell)) for cell in row)
        typer.echo("| " + " | ".join(cells) + " |")
