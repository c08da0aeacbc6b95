"""Which recorded clients the changes of a plan hit, and which clients would have been throttled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from quota_metrics.config.broker_refusals import altered
from quota_metrics.config.entities import Entity, Rules
from quota_metrics.config.quota_plan import QuotaDifference, alterations_of
from quota_metrics.config.resolution import Resolver
from quota_metrics.simulation.outcomes import ClientOutcome
from quota_metrics.what_if.answer import WhatIfAnswer

Names = tuple[str, str]  # user, client-id


def hits(
    rules: Rules, changes: Sequence[QuotaDifference], clients: Iterable[Names]
) -> Mapping[tuple[Entity, str], list[Names]]:
    """For each changed value the recorded clients whose quota it is, before or after all the changes."""
    before, after = Resolver(rules), Resolver(altered(rules, *alterations_of(changes)))
    changed = {(change.holder, change.key) for change in changes}
    of_change: dict[tuple[Entity, str], list[Names]] = defaultdict(list)
    for user, client_id in clients:
        quotas = [resolver.resolve(user, client_id) for resolver in (before, after)]
        entities = {(resolution.entity, key) for resolved in quotas for key, resolution in resolved.items()}
        for change in entities & changed:
            of_change[change].append((user, client_id))
    return of_change


def harmed(answer: WhatIfAnswer) -> list[ClientOutcome]:
    """Clients that would have been throttled for longer than they were: one for each quota key, user and client-id, at
    its worst broker, the longest throttled first."""
    worst: dict[tuple[str, str, str], ClientOutcome] = {}
    for outcome in answer.outcomes:
        client = outcome.client
        if outcome.affected and outcome.after.throttled_ms > outcome.before.throttled_ms:
            key = (client.quota_key, client.user, client.client_id)
            if key not in worst or _longer(outcome) > _longer(worst[key]):
                worst[key] = outcome
    return sorted(worst.values(), key=_longer, reverse=True)


def _longer(outcome: ClientOutcome) -> float:
    return outcome.after.throttled_ms - outcome.before.throttled_ms
