"""What is wrong with this Headroom although it is ready: data that is stored late, and records or usage that were lost.

The age of what waits comes from the files of the spool, and the losses from the counts of the processes that had them:
neither depends on the storage worker being alive or telling the truth.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.waiting import KINDS, oldest_ms
from headroom.daemon_thread import in_daemon_thread
from headroom.server.metrics import Readings, total
from headroom.server.periodic import PeriodicTask
from headroom.web.tiles import Reading, Trends
from telemetry.ingest.progress import REPLAY_WRITER

_EVERY_MS = 1_000
_RECENT_S = 600.0  # a loss is reported for so long; the counters keep it
ARRIVED_BYTES: Final = SelfMetric("arrived bytes", "Bytes that were appended to the spool since it began.")
_LOSSES: Final[dict[SelfMetric, str]] = {
    catalogue.DROPPED: "records were dropped (headroom_dropped_total)",
    catalogue.USAGE_ROWS_LOST: "rows of usage were lost (headroom_usage_rows_lost_total)",
    catalogue.FORWARD_LOST_PUSHES: "pushes were not forwarded (headroom_forward_lost_pushes_total)",
    catalogue.FORWARD_LOST_POINTS: "points were refused by the OTLP endpoint (headroom_forward_lost_points_total)",
    catalogue.JMX_FAILURES: "scrapes of brokers' JMX failed (headroom_jmx_scrape_failures_total)",
    catalogue.USAGE_LEFT_OUT: "exchanges were not metered (headroom_usage_left_out_total)",
}


class HealthReport(NamedTuple):
    """The health for an operator. `reason`: why it is not ready; empty when it is. `degraded`: one line each."""

    reason: str
    degraded: list[str]
    oldest_s: dict[str, float]  # age of the oldest record that is not stored, by kind; 0 without one

    def lines(self) -> list[str]:
        ages = (f"oldest record of {kind} that is not stored: {age_s:.1f} s" for kind, age_s in self.oldest_s.items())
        return [self.reason or "ready", *(f"degraded: {text}" for text in self.degraded), *ages]


class Recent(NamedTuple):
    """How much was counted in the last `window_s`, of each metric and of ARRIVED_BYTES."""

    window_s: float
    counts: dict[SelfMetric, float]


class Health:
    """Samples once a second. `counts`: readings with those of _LOSSES. `late_ms`: above it a kind of data is late.
    `is_draining`: whether Kafka's listeners are about to close; nothing else takes them out of service."""

    def __init__(
        self,
        spool: Path,
        late_ms: int,
        not_ready_reason: Callable[[], str | None],
        counts: Readings,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spool = spool
        self._late_s = late_ms / 1000
        self._not_ready_reason = not_ready_reason
        self._counts = counts
        self._is_draining = is_draining
        self._oldest_ms: dict[str, int] = {}
        self._unreadable = ""  # why the spool cannot be examined
        self._counted: deque[tuple[float, dict[SelfMetric, float]]] = deque()
        self.trends = Trends()

    def task(self) -> PeriodicTask:
        return PeriodicTask("health", _EVERY_MS, self.sample)

    async def sample(self) -> None:
        self.count(time.monotonic())
        try:
            self._oldest_ms = await in_daemon_thread(partial(oldest_ms, self._spool, REPLAY_WRITER))
            self._unreadable = ""
        except (OSError, ValueError) as exc:
            self._unreadable = f"the spool cannot be examined: {exc}"

    def count(self, now_s: float) -> None:
        """Remembers the counts of losses, and what trends are made of, at this (monotonic) time."""
        counts = self._counts()
        totals = defaultdict(float, {metric: total(values) for metric, values in counts.items()})
        totals[ARRIVED_BYTES] = totals[catalogue.SPOOL_READ_BYTES] + totals[catalogue.SPOOL_BYTES]
        records = counts.get(catalogue.RECORDS, 0.0)
        by_state = records.items() if isinstance(records, Mapping) else ()
        self.trends.note(
            now_s,
            Reading(
                connections=totals[catalogue.CONNECTIONS],
                pushes=totals[catalogue.PUSHES],
                oldest_s=max(self.oldest_s(time.time()).values()),
                spool_bytes=totals[catalogue.SPOOL_BYTES],
                written=sum(count for state, count in by_state if state == "written"),
            ),
        )
        self._counted.append((now_s, totals))
        while len(self._counted) > 1 and self._counted[1][0] <= now_s - _RECENT_S:
            self._counted.popleft()

    @property
    def not_serving_reason(self) -> str:
        """Why no Kafka client should be sent here; empty when it should, whatever the store does."""
        return "draining" if self._is_draining() else ""

    def report(self, now_s: float | None = None) -> HealthReport:
        ages = self.oldest_s(time.time() if now_s is None else now_s)
        late = [
            f"{kind}: the oldest record waits for {age_s:.0f} s" for kind, age_s in ages.items() if age_s > self._late_s
        ]
        unreadable = [self._unreadable] if self._unreadable else []
        recent, minutes = self.recent().counts, f"{_RECENT_S / 60:.0f} minutes"
        lost = [
            f"{recent[metric]:.0f} {text} in the last {minutes}"
            for metric, text in _LOSSES.items()
            if recent.get(metric, 0.0) > 0
        ]
        reason = self.not_serving_reason or self._not_ready_reason() or ""
        return HealthReport(reason, [*late, *unreadable, *lost], ages)

    def oldest_s(self, now_s: float) -> dict[str, float]:
        """Age of the oldest record that is not stored, by kind; 0 without one."""
        return {kind: max(0.0, now_s - at_ms / 1000) if (at_ms := self._oldest_ms.get(kind)) else 0.0 for kind in KINDS}

    def recent(self) -> Recent:
        if not self._counted:
            return Recent(0.0, {})
        (first_s, first), (last_s, last) = self._counted[0], self._counted[-1]
        return Recent(
            last_s - first_s, {metric: max(0.0, count - first.get(metric, 0.0)) for metric, count in last.items()}
        )

    def readings(self) -> dict[SelfMetric, Values]:
        return {catalogue.SPOOL_OLDEST: self.oldest_s(time.time())}
