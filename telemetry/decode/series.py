"""Identity of a time series: normalised attributes and the series id; which are known; how many a client may add.

Sans-I/O.

Keys are snake_case: '.' and '-' become '_', so librdkafka's `node.id` and Java's `node_id` are one key, and Java's
`group_member_id` is librdkafka's `member_id`. When two keys become equal, the first wins. Values stay as the
client sent them, as text: librdkafka's int 1 becomes '1', Java's string remains 'node-1'.
"""

import math
from base64 import b64encode
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from xxhash import xxh3_64_intdigest

from exporters.identity import payer_of
from exporters.model import Push
from telemetry.decode.bounds import over_budget

Attributes = tuple[tuple[str, str], ...]  # sorted by key

_ALIASES = {"group_member_id": "member_id"}
_SNAKE_CASE = str.maketrans(".-", "__")


class Series(NamedTuple):
    """A row of `series` without the columns of the connection."""

    metric: str
    kind: str  # 'gauge' | 'sum'
    temporality: str  # 'unspecified' | 'delta' | 'cumulative'
    monotonic: bool
    unit: str
    attributes: Attributes
    resource: Attributes
    scope_name: str
    scope_version: str


def identity(push: Push) -> bytes:
    """The owner of series, for `series_id`. It comes from the connection, so no payload can write to others' series."""
    return owner(push.connection.cluster, push.connection.principal, push.client_id, push.client_instance_id.hex())


def owner(cluster: str, principal: str, client_id: str, instance: str) -> bytes:
    """`identity` from its parts. `instance`: 32 hexadecimal digits."""
    return _exact(orjson.dumps((cluster, principal, client_id, instance)))


def series_id(of: bytes, metric: str, kind: str, temporality: str, attributes: Attributes) -> int:
    """The permanent 64-bit id of a series: xxh3 of its owner (`identity`), metric, kind, temporality and attributes."""
    return series_id_of(of, orjson.dumps((metric, kind, temporality, attributes)))


def series_key(series: Series) -> bytes:
    """The part of a series id that does not depend on the owner, for `series_id_of`."""
    return _exact(orjson.dumps((series.metric, series.kind, series.temporality, series.attributes)))


def _exact(encoded: bytes) -> bytes:
    """A copy that is kept: the buffers that orjson returns hold 4 KiB each."""
    return b"%b" % encoded


def series_id_of(of: bytes, key: bytes) -> int:
    """`series_id` of an owner (`identity`) and a `series_key`."""
    return xxh3_64_intdigest(of + key)


def attributes_of(pairs: Any, max_pairs: int, max_chars: int) -> Attributes:
    """The first `max_pairs` OTLP KeyValues, equal keys included, normalised; longer texts are cut."""
    if not pairs:
        return ()
    texts: dict[str, str] = {}
    for pair in pairs[:max_pairs]:
        texts.setdefault(normal_key(pair.key[:max_chars]), text_of(pair.value)[:max_chars])
    return tuple(sorted(texts.items()))


def text_bytes(attributes: Attributes) -> int:
    """Their approximate size in a row, in bytes."""
    return sum(len(key) + len(value) for key, value in attributes)


@lru_cache(maxsize=4096)
def normal_key(key: str) -> str:
    """A key in snake_case, with aliases resolved. Cached by the client's spelling: limit the length of keys before."""
    snake_case = key.translate(_SNAKE_CASE)
    return _ALIASES.get(snake_case, snake_case)


def text_of(value: Any) -> str:
    """An OTLP AnyValue as text by OpenTelemetry's rules for non-OTLP formats (JSON; bytes in base64)."""
    if value.HasField("string_value"):  # the common case
        return str(value.string_value)
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return "" if plain is None else orjson.dumps(plain).decode()


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "double_value" and not math.isfinite(value.double_value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value.double_value, "NaN")
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode()
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    return getattr(value, kind) if kind in _SCALARS else None


_SCALARS = frozenset(("string_value", "int_value", "double_value", "bool_value"))


Ids = npt.NDArray[np.uint64]

_NONE: Ids = np.array([], np.uint64)
_MAX_SERIES_PER_CLIENT = 200_000  # each push without a matching template scans all of them
_CLIENT_BYTES = 400  # what a client costs beside its ids: key, dict entry, array object


class _Client(NamedTuple):
    written_ms: int  # the first of them
    ids: Ids


class KnownSeries:
    """The series that need not be described again, by client (`series.identity`).

    Memory is bounded to about `max_bytes`; the clients written first are evicted.

    A client with more than 200,000 series starts over. Series of a batch are known from their first push on; call
    `keep` when the batch is written, `forget` when it fails.
    """

    def __init__(self, max_bytes: int, rewritten_after_ms: int) -> None:
        self._max_bytes = max_bytes
        self._rewritten_after_ms = rewritten_after_ms
        self._clients: dict[bytes, _Client] = {}  # in order of first write
        self._before: dict[bytes, _Client | None] = {}  # at the beginning of the batch
        self._count = 0
        self._added = 0  # in this batch

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
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
        written = self._clients.get(client)
        return _NONE if written is None else written.ids

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
            self._count -= len(before.ids)
            before = None
        self._clients[client] = _Client(
            before.written_ms if before else now_ms, np.concatenate([before.ids, fresh]) if before else fresh
        )
        self._count += len(fresh)
        self._added += len(fresh)

    def keep(self) -> int:
        """The batch was written. Returns the number of series it described."""
        added, self._added = self._added, 0
        self._before.clear()
        while self.nbytes > self._max_bytes:
            self._drop_first()
        return added

    def forget(self) -> None:
        """The batch was not written."""
        if not self._before:
            return
        for client, before in self._before.items():
            if before is None:
                del self._clients[client]
            else:
                self._clients[client] = before
        self._count = sum(len(client.ids) for client in self._clients.values())
        self._before.clear()
        self._added = 0

    def _drop_first(self) -> None:
        self._count -= len(self._clients.pop(next(iter(self._clients))).ids)


_MS_PER_MINUTE = 60_000
_TIMES_PER_PAYER = 30
_MAX_OWNERS = 65_536  # whose counts are kept; above it those counted first are forgotten


@dataclass(slots=True)
class _Use:
    minute: int
    points: int = 0
    series: int = 0


class ClientBudgets:
    """Budgets of clients and payers, per minute in which pushes were received. A backlog counts like live traffic.

    A client chooses its instance ids, so its payer (exporters.identity.payer_of) has a budget as well. The default is
    enough for 10,000 instances that push 1,000 points every ten seconds, or that start at once with 600 series each.
    Counts are in memory only and restart with the process.
    """

    def __init__(self, points: int = 2_000_000, series: int = 200_000) -> None:
        """`points` and `series` are the budget of a client; a payer has _TIMES_PER_PAYER as much."""
        self._points = points
        self._series = series
        self._clients: dict[bytes | str, _Use] = {}
        self._payers: dict[bytes | str, _Use] = {}

    def charge(self, client: bytes, push: Push, points: int, series: int) -> None:
        """Adds the counts of a push. `client`: as in series.identity. Raises OverBudget and then adds nothing."""
        minute = push.received_at_ms // _MS_PER_MINUTE
        payer = _payer(push.connection.principal, push.connection.source_address)
        charged = []
        for kind, owner, uses, times in (
            ("client", client, self._clients, 1),
            ("payer", payer, self._payers, _TIMES_PER_PAYER),
        ):
            use = uses.get(owner)
            if use is None:
                if len(uses) >= _MAX_OWNERS:
                    del uses[next(iter(uses))]
                use = uses[owner] = _Use(minute)
            elif use.minute != minute:
                use.minute, use.points, use.series = minute, 0, 0
            if use.points + points > times * self._points:
                raise over_budget(f"points of one {kind} in a minute", times * self._points)
            if use.series + series > times * self._series:
                raise over_budget(f"new series of one {kind} in a minute", times * self._series)
            charged.append(use)
        for use in charged:
            use.points += points
            use.series += series


_payer = lru_cache(maxsize=_MAX_OWNERS)(payer_of)
