"""The series that were written recently, by client; they are not described again. Sans-I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

_NONE: Ids = np.array([], np.uint64)
_MAX_SERIES_PER_CLIENT = 200_000  # each push without a matching template scans all of them
_CLIENT_BYTES = 400  # what a client costs beside its ids: key, dict entry, array object


class _Client(NamedTuple):
    written_ms: int  # the first of them
    ids: Ids


class KnownSeries:
    """By client (as in `series.identity`). Bounded to about `max_bytes`; evicts the clients written first.

    A client with more than 200,000 series starts over. Series of a batch are known from their first push on; call
    `keep` when the batch is written, `forget` when it fails.
    """

    def __init__(self, max_bytes: int, rewritten_after_ms: int) -> None:
        self._max_bytes = max_bytes
        self._rewritten_after_ms = rewritten_after_ms
        self._clients: dict[bytes, _Client] = {}  # in order of first write
        self._before: dict[bytes, _Client | None] = {}  # at the beginning of the batch
        self._count = 0
        self._grown_by = 0  # in this batch
        self._added = 0  # in this batch

    def __len__(self) -> int:
        """Number of known series."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return self._count * _NONE.itemsize + len(self._clients) * _CLIENT_BYTES

    def recall(self, clients: Iterable[tuple[bytes, int, Ids]]) -> None:
        """Adds what an earlier process wrote: client, when its first series was written (ms), ids.

        Call it before the first batch, with the clients written first in front. Clients above `max_bytes` are left out.
        """
        for client, written_ms, ids in clients:
            if self.nbytes >= self._max_bytes:
                return
            if client not in self._clients:
                self._clients[client] = _Client(written_ms, ids)
                self._count += len(ids)

    def of(self, client: bytes) -> Ids:
        """Unordered. The array is the same object until the client's series change."""
        known = self._clients.get(client)
        return _NONE if known is None else known.ids

    def begin(self, now_ms: int) -> None:
        """Begins a batch. Forgets clients whose first series was written `rewritten_after_ms` ago."""
        self.forget()
        horizon = now_ms - self._rewritten_after_ms
        while self._clients and next(iter(self._clients.values())).written_ms <= horizon:
            self._drop_first()

    def add(self, client: bytes, ids: Collection[int], now_ms: int) -> None:
        """Adds new series of a client in the batch."""
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
        """The batch was written. Returns the number of series it described."""
        added = self._added
        self._settle()
        while self.nbytes > self._max_bytes:
            self._drop_first()
        return added

    def forget(self) -> None:
        """The batch was not written."""
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
