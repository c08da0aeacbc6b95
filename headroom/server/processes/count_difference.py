"""The difference between what the network processes counted as received and what the storage worker accounts for.

Different processes count at different moments. A count of the worker is therefore compared with the received counts
`window_s` before and `window_s` after it; only a count outside this range is a difference. Sans-I/O.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


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
        middle = next(one for one in self._samples if one.at_s >= at_s - self._window_s)
        if not self._is_synchronized:
            self._is_synchronized = True
            self._offset, self._slack = middle.accounted - middle.received, received - oldest.received
        low, high = oldest.received + self._offset - self._slack, received + self._offset + self._slack
        self.value = max(low - middle.accounted, 0) or min(high - middle.accounted, 0)
