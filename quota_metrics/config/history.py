"""History of a cluster's quota configuration: the differences between descriptions, as rows. Sans-I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

from exporters.model import DEFAULT_ENTITY, QuotaLimit
from quota_metrics.config.entities import CLIENT_ID, IP, TYPES, USER, Entity, Rules
from quota_metrics.windows import UNLIMITED

_Known: TypeAlias = dict[tuple[str, str, str, str], float]  # user, client_id, ip, quota_key


class LimitHistory:
    """Turns successive descriptions of one cluster's quotas into the rows of quota_limits.

    `stored`: rows written earlier, in any order. With them, no row is repeated after a restart, and quotas removed in
    the meantime are detected.
    """

    def __init__(self, cluster: str, stored: Iterable[QuotaLimit] = ()) -> None:
        self._cluster = cluster
        self._known: _Known = {}
        for row in sorted(stored, key=lambda row: row.valid_from_ms):
            place = (row.user, row.client_id, row.ip, row.quota_key)
            if row.value is None:
                self._known.pop(place, None)
            else:
                self._known[place] = row.value

    def changes(self, described: Rules, now_ms: int) -> list[QuotaLimit]:
        """One row per new or changed value, and one with value None per removed value.

        `described` is the whole configuration (KafkaAdmin.describe_client_quotas without a filter).
        """
        current: _Known = {}
        for entity, values in described.items():
            if has_a_row(entity):
                names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in entity}
                user, client_id, ip = (names.get(kind, "") for kind in (USER, CLIENT_ID, IP))
                for key, value in values.items():
                    current[user, client_id, ip, key] = value if math.isfinite(value) else UNLIMITED
        set_now = [(place, value) for place, value in current.items() if self._known.get(place) != value]
        gone = sorted(self._known.keys() - current.keys())
        self._known = current
        return [self._row(place, value, now_ms) for place, value in set_now] + [
            self._row(place, None, now_ms) for place in gone
        ]

    def _row(self, place: tuple[str, str, str, str], value: float | None, now_ms: int) -> QuotaLimit:
        user, client_id, ip, quota_key = place
        return QuotaLimit(self._cluster, user, client_id, ip, quota_key, now_ms, value)


def unrecorded(changes: Iterable[QuotaLimit], stored: Iterable[QuotaLimit]) -> list[QuotaLimit]:
    """The changes that `stored` does not contain; another gateway of the cluster recorded the others."""
    newest: dict[tuple[str, str, str, str], float | None] = {}
    for row in sorted(stored, key=lambda row: row.valid_from_ms):
        newest[row.user, row.client_id, row.ip, row.quota_key] = row.value
    return [row for row in changes if newest.get((row.user, row.client_id, row.ip, row.quota_key)) != row.value]


def has_a_row(entity: Entity) -> bool:
    """Whether a row can represent the entity: each type has a column, and no name is the mark of 'absent' or 'default'.

    Kafka accepts neither an empty name nor other types. It accepts infinity and NaN, which never throttle.
    """
    return all(kind in TYPES and name not in ("", DEFAULT_ENTITY) for kind, name in entity)
