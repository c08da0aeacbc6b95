"""Prints the result of `headroom quotas what-if` as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from exporters.printable import shortened
from headroom.cli.output import quotas as quota_output
from headroom.cli.output.tables import print_table
from quota_metrics.simulation.outcome_text import reason, verdict
from quota_metrics.simulation.outcomes import Outcome, Side

_HEADINGS = ("verdict", "quota", "user", "client", "broker", "limit", "throttled", "longest", "reason")


def print_json(outcomes: Sequence[Outcome]) -> None:
    """A list with an object for each client, quota and broker."""
    quota_output.print_json([_document(outcome) for outcome in outcomes])


def print_outcomes(outcomes: Sequence[Outcome], from_ms: int, to_ms: int) -> None:
    """`before -> after` where they differ. Clients not affected by the change are only counted."""
    shown = [outcome for outcome in outcomes if outcome.affected]
    print_table(_HEADINGS, [_row(outcome) for outcome in shown])
    others = len(outcomes) - len(shown)
    typer.echo(f"over {(to_ms - from_ms) / 1000:.0f} s; the change does not affect {others} more")


def _row(outcome: Outcome) -> tuple[str, ...]:
    client, before, after = outcome.client, outcome.before, outcome.after
    return (
        verdict(outcome),
        client.quota_key,
        shortened(client.user),
        shortened(client.client_id),
        str(client.broker_id),
        _change(_limit(before), _limit(after)),
        _change(f"{before.throttled_ms / 1000:.1f} s", f"{after.throttled_ms / 1000:.1f} s"),
        _change(f"{before.throttle_ms_max:.0f} ms", f"{after.throttle_ms_max:.0f} ms"),
        reason(outcome),
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _limit(side: Side) -> str:
    return "none" if side.rule is None else quota_output.number(side.rule.value)


def _document(outcome: Outcome) -> dict[str, Any]:
    client = outcome.client
    return {
        "user": client.user,
        "client_id": client.client_id,
        "quota_key": client.quota_key,
        "broker_id": client.broker_id,
        "verdict": verdict(outcome),
        "reason": reason(outcome),
        "before": _side(outcome.before),
        "after": {
            **_side(outcome.after),
            "shared_with": outcome.shared_with,
            "delayed_bytes": outcome.delayed_bytes,
            "delay_s_max": outcome.delay_ms_max / 1000,
            "waiting_bytes": outcome.waiting_bytes,
            "given_up_bytes": outcome.given_up_bytes,
        },
        "affected": outcome.affected,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "limit": None if side.rule is None else side.rule.value,
        "entity": None if side.rule is None else dict(side.rule.entity),
        "throttled_s": side.throttled_ms / 1000,
        "throttle_ms_max": side.throttle_ms_max,
    }
