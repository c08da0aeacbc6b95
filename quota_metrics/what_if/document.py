"""An answer as JSON: the same on page, API and command."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from quota_metrics.config.entities import kafka_configs_line
from quota_metrics.simulation.outcomes import ClientOutcome, OutcomeKind, Side, reason, verdict
from quota_metrics.what_if.answer import WhatIfAnswer


def document(answer: WhatIfAnswer, most: int | None = None) -> dict[str, Any]:
    """`most`: of clients, the worst first. `counts`: how many of the affected clients have each verdict."""
    affected = [outcome for outcome in answer.outcomes if outcome.affected]
    counts = Counter(str(verdict(outcome)) for outcome in affected)
    counts[OutcomeKind.UNCHANGED] += answer.quiet
    return {
        "cluster": answer.question.cluster,
        "command": "\n".join(
            kafka_configs_line(alteration.entity, key, value)
            for alteration in answer.question.alterations
            for key, value in alteration.values.items()
        ),
        "covers": {
            "from": _minute(answer.question.from_ms),
            "to": _minute(answer.question.to_ms),
            "seconds": (answer.question.to_ms - answer.question.from_ms) / 1000,
            "clients": answer.covers.clients,
            "of_clients": answer.covers.of_clients,
            "bytes_share": answer.covers.bytes_share,
        },
        "callback_classes": list(answer.callback_classes),
        "warning": class_warning(answer.callback_classes),
        "counts": {name: counts[name] for name in map(str, OutcomeKind) if counts[name]},
        "affected": len(affected) + answer.quiet,
        "unaffected": answer.unaffected,
        "clients": [client_document(outcome) for outcome in answer.outcomes[:most]],
    }


def coverage_text(covers: dict[str, Any]) -> str:
    """The time and the clients that an answer covers, in one sentence."""
    when = f"{covers['from']} to {covers['to']} UTC"
    if covers["clients"] == covers["of_clients"]:
        return f"covers {when} and all {covers['clients']} clients on a broker that the change may affect"
    return (
        f"covers {when} and, for its bounds, the busiest {covers['clients']} of {covers['of_clients']} clients on a"
        f" broker that the change may affect ({covers['bytes_share']:.0%} of their bytes)"
    )


def class_warning(classes: Sequence[str]) -> str:
    """That the replayed quotas may not be what decides; empty without `callback_classes`."""
    if not classes:
        return ""
    return (
        f"the brokers use {', '.join(classes)} (client.quota.callback.class), which may ignore configured quotas: the"
        " change may have no effect"
    )


def client_document(outcome: ClientOutcome) -> dict[str, Any]:
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
            "peak": outcome.peak,
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


def _minute(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
