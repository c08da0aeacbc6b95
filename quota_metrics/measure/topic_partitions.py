"""What changes of topics cost of controller_mutation_rate, by the partitions that topics are known to have. Sans-I/O.

KIP-599: a created topic costs its partitions, a deleted one those that it had, an enlarged one those that are added
(ReplicationControlManager.applyPartitionChangeQuota), also when the request only validates it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from exporters.model import PartitionChange

_MOST_TOPICS: Final = 1_000_000


class TopicPartitions:
    """The cluster's topics as they were last described, and as clients of the gateway changed them since."""

    def __init__(self) -> None:
        self.unknown = 0  # changes whose cost is not known
        self._partitions: dict[str, int] = {}

    def follow(self, partitions: Mapping[str, int]) -> None:
        """Takes a description of the cluster: topic -> partitions. A description without topics is ignored."""
        if partitions:
            self._partitions = dict(partitions)

    def cost(self, changes: Iterable[PartitionChange]) -> int:
        """The mutations of accepted changes. A change of unknown cost is counted in `unknown` and costs nothing."""
        cost = 0
        for topic, total, added, validate_only in changes:
            before = self._partitions.get(topic, -1) if validate_only else self._partitions.pop(topic, -1)
            if total > 0 and not validate_only and len(self._partitions) < _MOST_TOPICS:
                self._partitions[topic] = total
            if added >= 0:
                cost += added
            elif total < 0 or before < 0:
                self.unknown += 1
            else:
                cost += abs(total - before)
        return cost
