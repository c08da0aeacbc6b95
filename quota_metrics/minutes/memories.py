"""The memory of all clients as of a minute, and how it is restored from the minutes before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from exporters.clickhouse.client import ClickHouse
from exporters.model import BYTE_KEYS
from quota_metrics.minutes.records import records, statement
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, MEMORY_WINDOWS
from quota_metrics.verdict.window import MINUTE_MS, Base, Memory, Onset, PastWindow

Client: TypeAlias = tuple[str, str, str, str, str]  # cluster, source, quota key, user, client-id
Cluster: TypeAlias = tuple[str, str]  # cluster, source


class AsOf(NamedTuple):
    """What the minutes before `minute_ms` leave for it. `used`: the clusters that had usage in each of these."""

    minute_ms: int
    memories: Mapping[Client, Memory]
    used: Mapping[int, frozenset[Cluster]]

    def observed(self) -> frozenset[Cluster]:
        """The clusters that had usage in each of the CAUSE_WINDOWS minutes before."""
        starts = (self.minute_ms - ago * MINUTE_MS for ago in range(1, CAUSE_WINDOWS + 1))
        return frozenset.intersection(*(self.used.get(start_ms, frozenset()) for start_ms in starts))

    def after(self, memories: Mapping[Client, Memory], used: frozenset[Cluster]) -> AsOf:
        """With the minute that was computed; clients that had no usage for ten minutes are forgotten."""
        oldest_ms = self.minute_ms - (MEMORY_WINDOWS - 1) * MINUTE_MS
        kept = {
            client: memory
            for client, memory in self.memories.items()
            if client not in memories and memory.past and memory.past[-1].start_ms >= oldest_ms
        }
        recent = {start_ms: clusters for start_ms, clusters in self.used.items() if start_ms >= oldest_ms}
        return AsOf(self.minute_ms + MINUTE_MS, {**kept, **memories}, {**recent, self.minute_ms: used})


class _PastRow(NamedTuple):
    """A row of past.sql."""

    cluster: str
    source: str
    quota_key: str
    user: str
    client_id: str
    start_ms: int
    broker_id: int
    is_worst: int
    value: float
    muted_ms: int
    is_onset: int
    cause: str
    own_cause: str
    limit: float | None  # from here on the fields of Base
    limit_known: int
    usage: float
    group_usage: float
    bucket_user: str
    bucket_client_id: str
    culprit_user: str
    culprit_client_id: str
    culprit_share: float | None


def restored(store: ClickHouse, minute_ms: int) -> AsOf:
    """From the newest computation of each of the ten minutes before. Raises StoreError."""
    by_client: dict[Client, list[_PastRow]] = defaultdict(list)
    used: dict[int, set[Cluster]] = defaultdict(set)
    for row in map(_PastRow._make, records(store.table(statement("past"), {"minute_s": minute_ms // 1000}))):
        by_client[row[:5]].append(row)
        if row.is_worst and row.quota_key in BYTE_KEYS:
            used[row.start_ms].add((row.cluster, row.source))
    memories = {client: _memory(rows, minute_ms - MINUTE_MS) for client, rows in by_client.items()}
    return AsOf(minute_ms, memories, {start_ms: frozenset(clusters) for start_ms, clusters in used.items()})


def _memory(rows: list[_PastRow], newest_ms: int) -> Memory:
    """`rows`: of one client, oldest first."""
    totals: dict[int, float] = defaultdict(float)
    for row in rows:
        totals[row.start_ms] += row.usage
    worst = {row.start_ms: row for row in rows if row.is_worst}
    past = tuple(
        PastWindow(start_ms, row.value, float(row.muted_ms), row.usage, totals[start_ms])
        for start_ms, row in worst.items()
    )
    # A bool where one is due: compiled, the verdict takes no number for it.
    bases = {
        row.broker_id: Base._make((row.limit, bool(row.limit_known), *row[2 - len(Base._fields) :]))
        for row in rows
        if row.start_ms == newest_ms
    }
    oldest_onset_ms = newest_ms - (CAUSE_WINDOWS - 1) * MINUTE_MS
    onset = next((row for row in reversed(worst.values()) if row.is_onset and row.start_ms >= oldest_onset_ms), None)
    if onset is None:
        return Memory(past, bases, None)
    before = worst.get(onset.start_ms - MINUTE_MS)
    own_cause = onset.own_cause or onset.cause
    return Memory(past, bases, Onset(onset.start_ms, onset.cause, own_cause, before.usage if before else 0.0))
