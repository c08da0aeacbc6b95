"""Effective quotas at each broker, by Kafka's own rules or by the configured callback."""

from __future__ import annotations

from collections import Counter

from headroom.config.settings import QuotaConfig
from quota_metrics.cluster.topics import VERSIONS, partition_leaders
from quota_metrics.config.entities import Rules
from quota_metrics.kafka.admin import KafkaAdmin, metadata_request
from quota_metrics.measure.callbacks import CallbackError, ClusterMetadata, DefaultQuotaCallback, Partition, load
from quota_metrics.measure.quota_manager import QuotaManager


class ClusterQuotas:
    """One manager for all brokers; with a callback one per broker, because each Kafka broker has its own instance."""

    def __init__(self, config: QuotaConfig) -> None:
        self.has_callback = config.callback is not None
        self._path = config.callback or ""
        self._configs = config.callback_configs
        self._own = QuotaManager(DefaultQuotaCallback())
        self._managers: dict[int, QuotaManager] = {}
        self._rules: Rules = {}
        self._cluster: ClusterMetadata | None = None
        self._not_loaded = 0

    def open(self, broker_id: int) -> None:
        """A broker's callback. Raises CallbackError."""
        manager = QuotaManager(load(self._path, {**self._configs, "node.id": broker_id}))
        manager.configure(self._rules)
        if self._cluster is not None:
            manager.follow(self._cluster)
        self._managers[broker_id] = manager

    def at(self, broker_id: int) -> QuotaManager:
        """Kafka's own rules apply to a new broker whose callback fails to load; the failure is counted."""
        if not self.has_callback:
            return self._own
        if broker_id not in self._managers:
            try:
                self.open(broker_id)
            except CallbackError:
                self._not_loaded += 1
                self._managers[broker_id] = self._own
        return self._managers[broker_id]

    def configure(self, rules: Rules) -> None:
        """The cluster's whole configuration."""
        self._rules = rules
        for manager in {self._own, *self._managers.values()}:
            manager.configure(rules)

    def follow(self, cluster: ClusterMetadata) -> None:
        """The cluster's partitions."""
        self._cluster = cluster
        for manager in self._managers.values():
            manager.follow(cluster)

    def close(self) -> None:
        for manager in self._managers.values():
            manager.close()

    def faults(self) -> dict[str, float]:
        """Failed calls by method, `load` included."""
        total: Counter[str] = Counter({"load": self._not_loaded} if self.has_callback else {})
        for manager in self._managers.values():
            total.update(manager.faults)
        return {method: float(count) for method, count in total.items()}


async def read_partitions(admin: KafkaAdmin, cluster_id: str) -> ClusterMetadata:
    """The cluster's metadata, as callbacks get it. Raises ClusterError."""
    partitions = await admin.send(metadata_request(None, versions=VERSIONS), read=partition_leaders)
    return ClusterMetadata(cluster_id, tuple(Partition(*partition) for partition in partitions))
