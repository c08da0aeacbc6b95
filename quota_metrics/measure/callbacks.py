"""Kafka's ClientQuotaCallback (KIP-257) in Python: which clients share a quota, and its limit. Sans-I/O.

For clusters with their own callback: a Python callback with the same rules gives Headroom the same limits. It is
configured by import path, "package.module:Class"; the class is instantiated without arguments, then `configure` is
called with its settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from exporters.model import QuotaKey
from quota_metrics.config.entities import Entity
from quota_metrics.config.resolution import Resolver, Tags


class ClientQuotaType(StrEnum):
    """org.apache.kafka.server.quota.ClientQuotaType; quotas on ip never reach a callback."""

    PRODUCE = "PRODUCE"
    FETCH = "FETCH"
    REQUEST = "REQUEST"
    CONTROLLER_MUTATION = "CONTROLLER_MUTATION"


KEY_OF_TYPE: Mapping[ClientQuotaType, str] = {
    ClientQuotaType.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE.value,
    ClientQuotaType.FETCH: QuotaKey.CONSUMER_BYTE_RATE.value,
    ClientQuotaType.REQUEST: QuotaKey.REQUEST_PERCENTAGE.value,
    ClientQuotaType.CONTROLLER_MUTATION: QuotaKey.CONTROLLER_MUTATION_RATE.value,
}


class Partition(NamedTuple):
    """A partition and the broker that leads it, -1 for none."""

    topic: str
    partition: int
    leader_id: int


class ClusterMetadata(NamedTuple):
    """Partitions of all topics except those being deleted."""

    cluster_id: str
    partitions: tuple[Partition, ...]


class ClientQuotaCallback(Protocol):
    """One instance per broker, as in Kafka. Methods are called often and must not block."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Receives the settings, including `node.id`; called again when they change."""

    def quota_metric_tags(self, quota_type: ClientQuotaType, user: str, client_id: str) -> Tags:
        """Clients with equal tags share one quota. `user` is the principal's name. Called for every request."""

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """The limit of a tag set; None when it is not in use, which means unlimited.

        Called for new tags, and again after each update, change of metadata and required reset.
        """

    def update_quota(self, quota_type: ClientQuotaType, entity: Entity, value: float) -> None:
        """A quota was set with Kafka's own tools."""

    def remove_quota(self, quota_type: ClientQuotaType, entity: Entity) -> None:
        """A quota was removed with Kafka's own tools."""

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        """Whether limits changed by other means since the last call (test and clear). Called for every request."""

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Topics or leaders changed. Returns whether limits changed, too."""

    def close(self) -> None:
        """Called once, last."""


class CallbackError(Exception):
    """A callback is invalid; the message is one line."""


METHODS = tuple(name for name in vars(ClientQuotaCallback) if not name.startswith("_"))


def load(path: str, configs: Mapping[str, object]) -> ClientQuotaCallback:
    """Loads and configures the callback at `path`. Raises CallbackError for anything that its code raises."""
    module_name, _, class_name = path.partition(":")
    try:
        callback: ClientQuotaCallback = getattr(importlib.import_module(module_name), class_name)()
        missing = [name for name in METHODS if not callable(getattr(callback, name, None))]
        if missing:
            raise CallbackError(f"the quota callback {path} has no method {', '.join(missing)}")
        callback.configure(configs)
    except CallbackError:
        raise
    except Exception as exc:  # a foreign class may raise anything
        raise CallbackError(f"the quota callback {path} cannot be used: {type(exc).__name__}: {exc}") from exc
    return callback


class DefaultQuotaCallback:
    """Kafka's own: the eight levels of user and client-id (ClientQuotaManager.DefaultQuotaCallback)."""

    def __init__(self) -> None:
        self._rules: dict[Entity, dict[str, float]] = {}
        self._resolver: Resolver | None = None  # built on demand, because changes arrive in batches

    def configure(self, configs: Mapping[str, object]) -> None:
        """There are no settings."""

    def quota_metric_tags(self, quota_type: ClientQuotaType, user: str, client_id: str) -> Tags:
        return self._resolved().metric_tags(KEY_OF_TYPE[quota_type], user, client_id)

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        rule = self._resolved().limit_of_tags(KEY_OF_TYPE[quota_type], metric_tags)
        return None if rule is None else rule.value

    def update_quota(self, quota_type: ClientQuotaType, entity: Entity, value: float) -> None:
        self._rules.setdefault(entity, {})[KEY_OF_TYPE[quota_type]] = value
        self._resolver = None

    def remove_quota(self, quota_type: ClientQuotaType, entity: Entity) -> None:
        self._rules.get(entity, {}).pop(KEY_OF_TYPE[quota_type], None)
        self._resolver = None

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        return False

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to release."""

    def _resolved(self) -> Resolver:
        if self._resolver is None:
            self._resolver = Resolver(self._rules)
        return self._resolver
