"""An answer as JSON: the same on page, API and command."""

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from exporters.model import QuotaKey
from quota_metrics.config.entities import kafka_configs_line
from quota_metrics.simulation.outcomes import ClientOutcome, OutcomeKind, Side, reason, verdict
from quota_metrics.what_if.answer import WhatIfAnswer
from quota_metrics.windows import LARGEST_BATCH


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
        "warning": "; ".join(warnings(answer)),
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


def warnings(answer: WhatIfAnswer) -> list[str]:
    """What the replay does not see: the replayed quotas may not be what decides, and batches may be too large."""
    said = []
    if answer.callback_classes:
        said.append(
            f"the brokers use {', '.join(answer.callback_classes)} (client.quota.callback.class), which may ignore"
            " configured quotas: the change may have no effect"
        )
    # A Fetch response with a first batch that the rate forbids over the whole window is emptied each time.
    limits = [change.values.get(QuotaKey.CONSUMER_BYTE_RATE.value) for change in answer.question.alterations]
    limit = min((limit for limit in limits if limit is not None), default=math.inf)
    if limit * answer.window_s < LARGEST_BATCH:
        said.append(
            f"with a consumer_byte_rate of {limit:g}, record batches above {limit * answer.window_s:.0f} bytes would"
            f" never be delivered, and their consumers stop: Kafka's default of max.message.bytes is {LARGEST_BATCH}"
        )
    return said


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
