"""Which series of which client were written recently: those are not described again. Sans-I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

_NONE: Ids = np.array([], np.uint64)
_MAX_SERIES_PER_CLIENT = 200_000  # every push that is not matched by a template looks at all of them


class _Client(NamedTuple):
    written_ms: int  # the first of them
    ids: Ids


class KnownSeries:
    """By client, as `series.identity` names it; at most `max_series`, the clients written first are evicted first.

    A client with more than 200,000 starts over. Series of a batch are known from their first push on, until the
    batch fails: `keep` or `forget` them.
    """

    def __init__(self, max_series: int, rewritten_after_ms: int) -> None:
        self._max_series = max_series
        self._rewritten_after_ms = rewritten_after_ms
        self._clients: dict[bytes, _Client] = {}  # in the order of their first writing
        self._before: dict[bytes, _Client | None] = {}  # as it was when the batch began
        self._count = 0
        self._grown_by = 0  # in this batch
        self._added = 0  # in this batch

    def __len__(self) -> int:
        """How many series are known."""
        return self._count

    def of(self, client: bytes) -> Ids:
        """In no order. The array is the same object as long as nothing changes for the client."""
        known = self._clients.get(client)
        return _NONE if known is None else known.ids

    def begin(self, now_ms: int) -> None:
        """A batch begins. Forgets clients whose first series was written `rewritten_after_ms` ago."""
        self.forget()
        horizon = now_ms - self._rewritten_after_ms
        while self._clients and next(iter(self._clients.values())).written_ms <= horizon:
            self._drop_first()

    def add(self, client: bytes, ids: Collection[int], now_ms: int) -> None:
        """Series of a client that are in the batch and were not known."""
        if not ids:
            return
        before = self._clients.get(client)
        self._before.setdefault(client, before)
        fresh = np.array([*ids], np.uint64)
        if before and len(before.ids) + len(fresh) > _MAX_SERIES_PER_CLIENT:
            self._grow_by(-len(before.ids))
            before = None
        self._clients[client] = _Client(
            before.written_ms if before else now_ms, np.concatenate([before.ids, fresh]) if before else fresh
        )
        self._grow_by(len(fresh))
        self._added += len(fresh)

    def keep(self) -> int:
        """The batch is written. Returns how many series it described."""
        added = self._added
        self._settle()
        while self._count > self._max_series:
            self._drop_first()
        return added

    def forget(self) -> None:
        """The batch is not written."""
        for client, before in self._before.items():
            if before is None:
                del self._clients[client]
            else:
                self._clients[client] = before
        self._count -= self._grown_by
        self._settle()

    def _grow_by(self, count: int) -> None:
        self._count += count
        self._grown_by += count

    def _settle(self) -> None:
        self._before.clear()
        self._grown_by = self._added = 0

    def _drop_first(self) -> None:
        self._count -= len(self._clients.pop(next(iter(self._clients))).ids)
