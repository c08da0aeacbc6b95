"""The counts of records for /metrics, and the difference between them.

received = written + dropped + buffered, from three independent counts. Different processes count at different moments.
A count of the worker is therefore compared with the received counts `window_s` before and `window_s` after it; only a
count outside this range is a difference.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.server.processes.network_processes import NetworkProcesses
from headroom.server.processes.storage_process import StorageWorker, accounted


class StorageReadings:
    """`spools` are those of this process. The store confirmed `written`, `dropped` is counted by reason, `buffered` in
    the spool; the worker reports them once a second. A killed network process may have written more records than it
    reported. A record that is replayed from quarantine counts as received once more."""

    def __init__(
        self, spools: Sequence[PushSpool | SpoolWriter], network: NetworkProcesses, worker: StorageWorker
    ) -> None:
        self._spools = spools
        self._network = network
        self._worker = worker
        self._restarts = network.restarts
        self._difference = CountDifference()
        self._compared: dict[str, Any] = {}  # counts of the worker
        if not worker.counts["is_counted"]:
            self._difference.resynchronize()

    def __call__(self) -> dict[SelfMetric, Values]:
        """Also compares the counts, when the worker has reported new ones; it is called once a second (health.py)."""
        worker, counts = self._worker, self._worker.counts
        written = self._network.records + sum(spool.records for spool in self._spools)
        received = worker.received_before + written
        if counts is not self._compared:
            self._compared = counts
            if not counts["is_counted"] or self._restarts != self._network.restarts:
                self._restarts = self._network.restarts
                self._difference.resynchronize()
            else:
                self._difference.sample(time.monotonic(), received, accounted(counts))
        return {
            catalogue.RECORDS_RECEIVED: max(received, accounted(counts)) + counts["replayed"],
            catalogue.RECORDS: {state: counts[state] for state in ("written", "dropped", "buffered")},
            catalogue.RECORDS_DIFFERENCE: self._difference.value,
            catalogue.DROPPED: counts["drop_reasons"],
            catalogue.SPOOL_BYTES: counts["buffered_bytes"],
            catalogue.SPOOL_READ_BYTES: counts["position_bytes"],
            catalogue.SPOOL_TORN: counts["torn"],
            catalogue.REPLACED_TEXTS: counts["replaced_texts"],
            catalogue.HOURS_TO_ROLL_UP: counts["hours_to_roll_up"],
            catalogue.WORKER_RESTARTS: worker.child.restarts,
            catalogue.WORKER_UP: worker.child.alive,
            catalogue.WORKER_IDLE: worker.idle_s,
            catalogue.STORE_UP: worker.store_up,
            catalogue.FORWARD_SEGMENTS_SKIPPED: counts["segments_not_forwarded"],
        }


class _Sample(NamedTuple):
    at_s: float
    received: int
    accounted: int


class CountDifference:
    """`value` is 0 as long as received = written + dropped + buffered; above 0 records are missing.

    Call `resynchronize` when records may have been written without being counted, as by a killed network process.
    """

    def __init__(self, window_s: float = 5.0) -> None:
        self.value = 0
        self._window_s = window_s
        self._samples: deque[_Sample] = deque()
        self._offset = 0  # added to what was received
        self._slack = 0  # uncertainty of the offset
        self._is_synchronized = True

    def resynchronize(self) -> None:
        """Accepts the next comparison as correct, within the records received meanwhile."""
        self._is_synchronized = False
        self._samples.clear()

    def sample(self, at_s: float, received: int, accounted: int) -> None:
        """`at_s` is monotonic; `accounted` is written + dropped + buffered as the worker has just reported."""
        self._samples.append(_Sample(at_s, received, accounted))
        while len(self._samples) > 1 and self._samples[1].at_s <= at_s - 2 * self._window_s:
            self._samples.popleft()
        oldest = self._samples[0]
        if oldest.at_s > at_s - 2 * self._window_s:
            return
        middle = next(sample for sample in self._samples if sample.at_s >= at_s - self._window_s)
        if not self._is_synchronized:
            self._is_synchronized = True
            self._offset, self._slack = middle.accounted - middle.received, received - oldest.received
        low, high = oldest.received + self._offset - self._slack, received + self._offset + self._slack
        self.value = max(low - middle.accounted, 0) or min(high - middle.accounted, 0)
