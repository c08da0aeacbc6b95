"""Rows of quota_limits as the rules that quota_metrics resolves."""

from __future__ import annotations

from collections.abc import Iterable

from exporters.clickhouse.client import Row
from quota_metrics.config.entities import Entity, entity_of_names

ALL_RULES = 1_000_000  # as the limit of queries.LIMITS: more than a cluster has


def rules_of(limits: Iterable[Row]) -> dict[Entity, dict[str, float]]:
    """The values of each entity, from rows of queries.LIMITS of one cluster."""
    rules: dict[Entity, dict[str, float]] = {}
    for rule in limits:
        rules.setdefault(entity_of_names(rule["user"], rule["client_id"], rule["ip"]), {})[rule["quota_key"]] = float(
            rule["value"]
        )
    return rules
