"""Sets topics, client quotas and telemetry subscriptions with Kafka's own Java Admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headroom.demo.jvm import Jvm, java_errors

TIMEOUT_S = 30


class Admin(AbstractContextManager["Admin"]):
    """A context manager around Kafka's Admin. Calls block until they are done, and raise DemoError when refused."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self._jvm = jvm
        self._admin = jvm.admin(bootstrap)

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def create_topics(self, names: Sequence[str], partitions: int = 1, replicas: int = 1, **config: str) -> None:
        """Topics with the same shape. Configuration with `_` for `.`: `retention_bytes="1000"`."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new_topic = self._jvm.classes.org.apache.kafka.clients.admin.NewTopic
        topics = [new_topic(name, partitions, replicas).configs(settings) for name in names]
        self._wait(self._admin.createTopics(topics).all())

    def alter_quota(self, entity: Mapping[str, str | None], values: Mapping[str, float | None]) -> None:
        """`entity` as in KIP-546 (None: the default entity); a value of None removes the key."""
        quota = self._jvm.classes.org.apache.kafka.common.quota
        who = quota.ClientQuotaEntity(self._jvm.classes.java.util.HashMap(dict(entity)))
        operations = [quota.ClientQuotaAlteration.Op(key, value) for key, value in values.items()]
        self._wait(self._admin.alterClientQuotas([quota.ClientQuotaAlteration(who, operations)]).all())

    def set_subscription(self, name: str, metrics: str, interval_ms: int, match: str = "") -> None:
        """Sets a CLIENT_METRICS resource like kafka-client-metrics.sh --alter."""
        values = {"metrics": metrics, "interval.ms": str(interval_ms), "match": match}
        kafka = self._jvm.classes.org.apache.kafka
        kind = kafka.common.config.ConfigResource.Type.CLIENT_METRICS
        resource = kafka.common.config.ConfigResource(kind, name)
        entry, operation = kafka.clients.admin.ConfigEntry, kafka.clients.admin.AlterConfigOp
        settings = [operation(entry(k, v), operation.OpType.SET) for k, v in values.items() if v]
        self._wait(self._admin.incrementalAlterConfigs({resource: settings}).all())

    def _wait(self, future: Any) -> None:
        with java_errors("change the cluster's configuration"):
            future.get(TIMEOUT_S, self._jvm.classes.java.util.concurrent.TimeUnit.SECONDS)
