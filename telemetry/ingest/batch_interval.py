"""How long the worker collects a batch. Sans-I/O.

A batch becomes one part of a ClickHouse table, and merging parts costs more than writing them. With many rows a second
the worker collects for longer: half as many parts, of which each is twice as large, so that a row is merged less often.
"""

from __future__ import annotations

_MANY_POINTS_S = 100_000  # from here on rows cost more than the batches themselves
_LONGER = 2  # with the 400,000 rows a second that one worker writes, less than the limit of a batch


def next_interval_s(batch_s: float, last_s: float, points: int) -> float:
    """Seconds until the next batch is written. `points`: written now, collected for `last_s` seconds.

    `batch_s` (store.batch_ms), or _LONGER times that with at least _MANY_POINTS_S.
    """
    return batch_s * _LONGER if points >= _MANY_POINTS_S * last_s else batch_s
