"""The demo's 16 clients: their rates, quotas and expected levels, and the pace at which producers keep a rate.

Producer and consumer of the same family and habit share a topic, so the producer's rate is what its consumer can read.
"""

import math
from dataclasses import dataclass
from itertools import product

from exporters.model import ANONYMOUS, QuotaKey

FAMILIES = ("java", "librdkafka")
ROLES = ("producer", "consumer")
HABITS = ("idle", "warn", "throttled", "free")

# Requests, responses and batches around the records, as a share: small, because records are large.
OVERHEAD = 0.015

RAMP_S = 2.0  # from zero to the full rate, to avoid a burst at the start
FORGIVEN_AFTER_S = 1.0  # a larger backlog, after a stall, is dropped


@dataclass(frozen=True, slots=True)
class Habit:
    """Rates and quotas of clients of a habit, in bytes/s."""

    level: str
    rate: float  # of the producer's record values
    record_bytes: int
    producer_limit: float | None
    consumer_limit: float | None
    greedy_after_s: float = math.inf  # when the producer starts to send as fast as it can


_WARN_LIMIT = 200_000.0

SCRIPT: dict[str, Habit] = {
    "idle": Habit("ok", 2_000.0, 1_000, 100_000.0, 100_000.0),
    "warn": Habit("warn", 0.85 * _WARN_LIMIT / (1 + OVERHEAD), 8_000, _WARN_LIMIT, _WARN_LIMIT),
    # The consumer's quota is below its producer's, so that there is always more to fetch. Both fill Kafka's window
    # evenly before the producer sends as fast as it can: a burst at the start would cause another one each time its
    # sample leaves the window, and the rate would oscillate by a fifth for minutes.
    "throttled": Habit("throttled", 285_000.0, 8_000, 300_000.0, 270_000.0, greedy_after_s=12.0),
    "free": Habit("ok", 60_000.0, 8_000, None, None),
}


@dataclass(frozen=True, slots=True)
class Client:
    family: str
    role: str
    habit: str

    @property
    def client_id(self) -> str:
        return f"{self.family}-{self.role}-{self.habit}"

    @property
    def topic(self) -> str:
        return f"{self.family}-{self.habit}"

    @property
    def script(self) -> Habit:
        return SCRIPT[self.habit]

    @property
    def quota_key(self) -> QuotaKey:
        return QuotaKey.PRODUCER_BYTE_RATE if self.role == "producer" else QuotaKey.CONSUMER_BYTE_RATE

    @property
    def limit(self) -> float | None:
        return self.script.producer_limit if self.role == "producer" else self.script.consumer_limit


CLIENTS = tuple(Client(*names) for names in product(FAMILIES, ROLES, HABITS))
TOPICS = tuple(f"{family}-{habit}" for family, habit in product(FAMILIES, HABITS))

# Quotas on client-id alone that are overridden by one on (user, client-id): one stricter and one looser.
MISLEADING = {"librdkafka-producer-warn": 20_000.0, "librdkafka-consumer-throttled": 50_000_000.0}

Entity = dict[str, str | None]


def quotas() -> list[tuple[Entity, dict[str, float | None]]]:
    """Entities with their quotas: Java clients by client-id, librdkafka ones by (user, client-id)."""
    rules: list[tuple[Entity, dict[str, float | None]]] = []
    for client in CLIENTS:
        misleading = MISLEADING.get(client.client_id)
        if misleading is not None:
            rules.append(({"client-id": client.client_id}, {client.quota_key: misleading}))
        if client.limit is not None:
            entity: Entity = {"client-id": client.client_id}
            if client.family == "librdkafka":
                entity["user"] = ANONYMOUS
            rules.append((entity, {client.quota_key: client.limit}))
    return rules


def clients(family: str, role: str) -> list[Client]:
    """The four of a family and role."""
    return [client for client in CLIENTS if (client.family, client.role) == (family, role)]


class Pace:
    """Paces records: `bytes_per_s` in records of `record_bytes`, both above 0. The rate is exact over time, without a
    burst after a stall. No clock."""

    def __init__(self, bytes_per_s: float, record_bytes: int, ramp_s: float = RAMP_S) -> None:
        self._rate = bytes_per_s
        self._record_bytes = record_bytes
        self._ramp_s = ramp_s
        self._settled = 0.0  # bytes sent, or dropped from the backlog

    def due(self, elapsed_s: float) -> int:
        """Number of records to send now, `elapsed_s` after the start; they count as sent."""
        owed = self._rate * (elapsed_s - self._ramp_s / 2)
        if elapsed_s < self._ramp_s:  # the rate grows linearly
            owed = self._rate * elapsed_s * elapsed_s / (2 * self._ramp_s)
        behind = owed - self._settled
        most = max(self._rate * FORGIVEN_AFTER_S, self._record_bytes)
        if behind > most:
            self._settled += behind - most
            behind = most
        records = int(behind // self._record_bytes)
        self._settled += records * self._record_bytes
        return records
