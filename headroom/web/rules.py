"""Rows of quota_limits as the rules that quota_metrics resolves."""

from __future__ import annotations

from collections.abc import Iterable

from exporters.clickhouse.reader import Row
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import CLIENT_ID, IP, USER, Entity, entity_of

ALL_RULES = 1_000_000  # as the limit of queries.LIMITS: more than a cluster has


def entity_of_row(rule: Row) -> Entity:
    names = {USER: rule["user"], CLIENT_ID: rule["client_id"], IP: rule["ip"]}
    return entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in names.items() if name})


def rules_of(limits: Iterable[Row]) -> dict[Entity, dict[str, float]]:
    """The values of each entity, from rows of queries.LIMITS of one cluster."""
    rules: dict[Entity, dict[str, float]] = {}
    for rule in limits:
        rules.setdefault(entity_of_row(rule), {})[rule["quota_key"]] = float(rule["value"])
    return rules
