"""Which callback applies at which broker."""

from __future__ import annotations

from typing import Any

import pytest

from headroom.config.settings import QuotaConfig
from headroom.server.quotas.cluster_quotas import ClusterQuotas
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.measure.callbacks import CallbackError, DefaultQuotaCallback

PRODUCER = "producer_byte_rate"
RULES: Rules = {entity_of({"client-id": None}): {PRODUCER: 100.0}}


class ByNode(DefaultQuotaCallback):
    """The limit is ten times the node's id; node 13 is refused."""

    def configure(self, configs: Any) -> None:
        self.node = int(configs["node.id"])
        if self.node == 13:
            raise ValueError("unlucky")

    def quota_limit(self, quota_type: Any, metric_tags: Any) -> float:
        return self.node * 10.0


def test_callback_applies_per_broker_and_its_faults_are_counted() -> None:
    quotas = ClusterQuotas(QuotaConfig(callback=f"{__name__}:ByNode"))
    assert [quotas.at(node).quota(PRODUCER, "alice", "app").limit for node in (1, 2)] == [10.0, 20.0]
    with pytest.raises(CallbackError, match="unlucky"):
        quotas.open(13)
    quotas.configure(RULES)
    assert quotas.at(13).quota(PRODUCER, "alice", "app").limit == 100.0
    assert quotas.faults() == {"load": 1.0}
