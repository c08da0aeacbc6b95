"""A broker's ClientQuotaManager with a callback: limits by tags, which are read again when they may have changed.

A callback is third-party code: its exceptions and invalid results are counted and logged, and the client is treated as
if it had no quota; nothing else is affected. Sans-I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from quota_metrics.config.entities import IP, Entity, Rules
from quota_metrics.config.resolution import Tags
from quota_metrics.measure.callbacks import KEY_OF_TYPE, ClientQuotaCallback, ClientQuotaType, ClusterMetadata
from quota_metrics.windows import UNLIMITED

T = TypeVar("T")

TYPE_OF_KEY: Mapping[str, ClientQuotaType] = {key: quota_type for quota_type, key in KEY_OF_TYPE.items()}

_Configured: TypeAlias = dict[tuple[Entity, ClientQuotaType], float]


class Quota(NamedTuple):
    """The quota of a client, shared by all clients with equal tags. UNLIMITED is Kafka's Long.MAX_VALUE."""

    metric_tags: Tags
    limit: float


class QuotaManager:
    """Quotas of the clients of one broker by its callback. Caches at most `max_tags` limits."""

    def __init__(self, callback: ClientQuotaCallback, *, max_tags: int = 100_000) -> None:
        self.faults: Counter[str] = Counter()  # by the callback's method
        self.last_fault = ""
        self._callback = callback
        self._max_tags = max_tags
        self._configured: _Configured = {}
        self._limits: dict[tuple[ClientQuotaType, tuple[tuple[str, str], ...]], float] = {}

    def configure(self, rules: Rules) -> None:
        """The cluster's whole configuration; the callback is notified of what changed."""
        described = dict(_configured(rules))
        for (entity, quota_type), value in described.items():
            if self._configured.get((entity, quota_type)) != value:
                self._ask("update_quota", self._callback.update_quota, quota_type, entity, value)
        for entity, quota_type in self._configured.keys() - described.keys():
            self._ask("remove_quota", self._callback.remove_quota, quota_type, entity)
        if described != self._configured:
            self._limits.clear()
        self._configured = described

    def follow(self, cluster: ClusterMetadata) -> None:
        """The cluster's partitions; limits are read again when the callback says so."""
        if self._ask("update_cluster_metadata", self._callback.update_cluster_metadata, cluster):
            self._limits.clear()

    def quota(self, quota_key: str, user: str, client_id: str) -> Quota:
        """A client's quota, as for one of its requests. Counts errors of the callback instead of raising them."""
        quota_type = TYPE_OF_KEY[quota_key]
        tags = self._tags(quota_type, user, client_id)
        if tags is None:
            return Quota({}, UNLIMITED)
        if self._ask("quota_reset_required", self._callback.quota_reset_required, quota_type):
            self._limits.clear()
        return Quota(tags, self._kept_limit(quota_type, tags))

    def limit(self, quota_key: str, tags: Tags) -> float:
        """The limit of a tag set that a broker reported. Counts errors of the callback instead of raising them."""
        return self._kept_limit(TYPE_OF_KEY[quota_key], tags)

    def close(self) -> None:
        """Closes the callback."""
        self._ask("close", self._callback.close)

    def _tags(self, quota_type: ClientQuotaType, user: str, client_id: str) -> Tags | None:
        tags = self._ask("quota_metric_tags", self._callback.quota_metric_tags, quota_type, user, client_id)
        if isinstance(tags, Mapping) and all(isinstance(part, str) for tag in tags.items() for part in tag):
            return tags
        if tags is not None:
            self._fault("quota_metric_tags", f"answered {type(tags).__name__} and not strings by strings")
        return None

    def _kept_limit(self, quota_type: ClientQuotaType, tags: Tags) -> float:
        place = (quota_type, tuple(tags.items()))
        limit = self._limits.get(place)
        if limit is None:
            if len(self._limits) >= self._max_tags:
                self._limits.clear()
            limit = self._limits[place] = self._limit(quota_type, tags)
        return limit

    def _limit(self, quota_type: ClientQuotaType, tags: Tags) -> float:
        limit = self._ask("quota_limit", self._callback.quota_limit, quota_type, tags)
        if limit is None:
            return UNLIMITED
        if isinstance(limit, int | float) and not isinstance(limit, bool) and not math.isnan(limit):
            return float(limit)
        self._fault("quota_limit", f"answered {type(limit).__name__} and not a number")
        return UNLIMITED

    def _ask(self, method: str, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return call(*arguments)
        except Exception as exc:  # noqa: BLE001  # third-party code may raise anything
            self._fault(method, f"raised {type(exc).__name__}: {exc}")
            return None

    def _fault(self, method: str, what: str) -> None:
        self.faults[method] += 1
        self.last_fault = f"the quota callback's {method} {what}"


def _configured(rules: Rules) -> Iterator[tuple[tuple[Entity, ClientQuotaType], float]]:
    """Quotas in the form that callbacks receive: by entity and type, without those on ip."""
    for entity, values in rules.items():
        if entity[0][0] != IP:
            for key, value in values.items():
                if key in TYPE_OF_KEY:
                    yield (entity, TYPE_OF_KEY[key]), value
