"""Paces records: the rate is exact over time, without a burst after a stall. No clock."""

from __future__ import annotations

RAMP_S = 2.0  # from zero to the full rate, to avoid a burst at the start
FORGIVEN_AFTER_S = 1.0  # a larger backlog, after a stall, is dropped


class Pace:
    """`bytes_per_s` in records of `record_bytes`, both above 0."""

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
