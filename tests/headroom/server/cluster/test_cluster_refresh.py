"""The brokers' metadata is read again and again; facts are read when brokers come, go or move."""

from __future__ import annotations

import asyncio
from typing import cast

from headroom.server.cluster.cluster_metadata import BrokerRefresh
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster, Node

ONE, TWO = Node(1, "a", 9092), Node(2, "b", 9092)


class Described:
    """A cluster with the next of these nodes at each question."""

    def __init__(self, *nodes: tuple[Node, ...]) -> None:
        self._coming = list(nodes)

    async def describe_cluster(self) -> Cluster:
        return Cluster("c", self._coming.pop(0), 1)


def test_facts_are_read_when_brokers_change() -> None:
    moved = ONE._replace(port=9093)
    readings = [(ONE, TWO), (TWO, ONE), (TWO,), (ONE, TWO), (ONE, TWO), (moved, TWO)]
    seen = []

    async def run() -> None:
        changed = 0

        async def note() -> None:
            nonlocal changed
            changed += 1

        refresh = BrokerRefresh(cast(KafkaAdmin, Described(*readings)), tuple, note)
        for _ in readings:
            await refresh.step()
            await asyncio.sleep(0)  # it runs beside
            seen.append(changed)

    asyncio.run(run())
    assert seen == [0, 0, 1, 2, 2, 3]
