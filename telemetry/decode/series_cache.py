"""Which series of which client were written of late: those need not be written again. Sans-I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

_NONE: Ids = np.array([], np.uint64)


class _Client(NamedTuple):
    written_ms: int  # the first of them
    ids: Ids


class KnownSeries:
    """By client, as `series.identity` names it; at most `max_series`, those written first go first.

    Series of a batch are known from their first push on, but only until the batch fails: `keep` or `forget` them.
    """

    def __init__(self, max_series: int, rewritten_after_ms: int) -> None:
        self._max_series = max_series
        self._rewritten_after_ms = rewritten_after_ms
        self._clients: dict[bytes, _Client] = {}  # in the order of their first writing
        self._before: dict[bytes, _Client | None] = {}  # what clients had when the batch began
        self._count = 0
        self._fresh = 0

    def __len__(self) -> int:
        """How many series are known."""
        return self._count

    def of(self, client: bytes) -> Ids:
        """In no order. The array is the same object as long as nothing changes for the client."""
        known = self._clients.get(client)
        return _NONE if known is None else known.ids

    def begin(self, now_ms: int) -> None:
        """A batch begins. Of clients whose series were written too long ago none are known any longer."""
        self.forget()
        horizon = now_ms - self._rewritten_after_ms
        while self._clients and next(iter(self._clients.values())).written_ms <= horizon:
            self._drop_first()

    def add(self, client: bytes, ids: Collection[int], now_ms: int) -> None:
        """These of a client are in the batch, and were not known."""
        if not ids:
            return
        before = self._clients.get(client)
        self._before.setdefault(client, before)
        fresh = np.array([*ids], np.uint64)
        self._clients[client] = _Client(
            before.written_ms if before else now_ms, np.concatenate([before.ids, fresh]) if before else fresh
        )
        self._count += len(fresh)
        self._fresh += len(fresh)

    def keep(self) -> int:
        """The batch is written; how many series it brought."""
        kept, self._fresh = self._fresh, 0
        self._before.clear()
        while self._count > self._max_series:
            self._drop_first()
        return kept

    def forget(self) -> None:
        """The batch is not written."""
        for client, before in self._before.items():
            if before is None:
                del self._clients[client]
            else:
                self._clients[client] = before
        self._before.clear()
        self._count -= self._fresh
        self._fresh = 0

    def _drop_first(self) -> None:
        self._count -= len(self._clients.pop(next(iter(self._clients))).ids)
