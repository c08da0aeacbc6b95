"""Identity of a time series: normalised attributes and the series id. Sans-I/O.

Keys are snake_case: '.' and '-' become '_', so librdkafka's `node.id` and Java's `node_id` are one key, and Java's
`group_member_id` is librdkafka's `member_id`. When two keys become equal, the first wins. Values stay as the
client sent them, as text: librdkafka's int 1 becomes '1', Java's string remains 'node-1'.
"""

from __future__ import annotations

import math
from base64 import b64encode
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64_intdigest

from exporters.model import Push

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
    found: dict[str, str] = {}
    for pair in pairs[:max_pairs]:
        found.setdefault(normal_key(pair.key[:max_chars]), text_of(pair.value)[:max_chars])
    return tuple(sorted(found.items()))


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
