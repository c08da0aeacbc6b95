"""Encodes and decodes spool records. Sans-I/O.

A push is a fixed head, the connection's facts, the client id and the unchanged payload:

    received_at_ms i64 | client_instance_id 16s | subscription_id i32 | terminating u8 | compression_type u8
    | connection_len u16 | client_id_len u16 | connection (JSON) | client_id (UTF-8) | payload

The fields from connection_len to client_id are equal in all pushes of a connection; `sender_bytes` encodes them
once. Usage and limits are JSON: {"fields": [names], "rows": [[values]]}.

Versions of Headroom with more or fewer JSON fields can read each other's records: unknown fields are ignored, missing
ones take the default of exporters/model.py or `_CONNECTION_DEFAULTS`. A change of the binary layout needs a new
segment_format.FORMAT.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from exporters.model import ANONYMOUS, UNKNOWN, ClientInstance, Connection, Push, QuotaLimit, UsageSample

_PUSH_HEAD: Final = struct.Struct(">q16siBB")
_PUSH_ORIGIN: Final = struct.Struct(">16siBB")
_INSTANCE_HEAD: Final = struct.Struct(">q16s")
_SENDER_HEAD: Final = struct.Struct(">HH")
_CONNECTION_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Connection))
_CONNECTION_DEFAULTS: Final[dict[str, Any]] = {  # for records of versions without the field
    "cluster": "",
    "listener": "",
    "principal": ANONYMOUS,
    "source_address": "",
    "source_port": 0,
    "software_name": UNKNOWN,
    "software_version": UNKNOWN,
    "broker_id": -1,
}
# Valid UTF-8 fits the length field; replacement characters may make invalid text longer.
_MAX_CLIENT_ID_CHARS: Final = 16_383


def sender_bytes(connection: Connection, client_id: str | None) -> bytes:
    """The part of a record that identifies its sender: connection and client id."""
    facts = orjson.dumps(dataclasses.asdict(connection))
    name = (client_id or "")[:_MAX_CLIENT_ID_CHARS].encode("utf-8", "replace")
    return _SENDER_HEAD.pack(len(facts), len(name)) + facts + name


def push_origin(
    client_instance_id: bytes, subscription_id: int, terminating: bool, compression_type: int, sender: bytes
) -> bytes:
    """The part of a push record that consecutive pushes of a client share."""
    return _PUSH_ORIGIN.pack(client_instance_id, subscription_id, terminating, compression_type) + sender


def push_record(received_at_ms: int, origin: bytes, payload: bytes) -> bytes:
    return received_at_ms.to_bytes(8, "big", signed=True) + origin + payload


def decode_push(record: bytes) -> Push:
    """Raises ValueError when the record is not a push."""
    received_at_ms, instance_id, subscription_id, terminating, compression = _unpack(_PUSH_HEAD, record)
    connection, client_id, start = _sender(record, _PUSH_HEAD.size)
    return Push(
        connection=connection,
        client_id=client_id,
        client_instance_id=instance_id,
        received_at_ms=received_at_ms,
        subscription_id=subscription_id,
        terminating=bool(terminating),
        compression_type=compression,
        payload=record[start:],
    )


def encode_instance(seen_at_ms: int, client_instance_id: bytes, sender: bytes) -> bytes:
    return _INSTANCE_HEAD.pack(seen_at_ms, client_instance_id) + sender


def decode_instance(record: bytes) -> ClientInstance:
    """Raises ValueError when the record is not a client instance."""
    seen_at_ms, instance_id = _unpack(_INSTANCE_HEAD, record)
    connection, client_id, _ = _sender(record, _INSTANCE_HEAD.size)
    return ClientInstance(connection, client_id, instance_id, seen_at_ms)


def encode_usage(samples: Sequence[UsageSample]) -> bytes:
    """A record of usage samples."""
    return _rows(UsageSample._fields, samples)


def decode_usage(record: bytes) -> list[UsageSample]:
    """Raises ValueError when the record is not usage samples."""
    return [UsageSample(**row) for row in _named(UsageSample._fields, record)]


def encode_limits(limits: Sequence[QuotaLimit]) -> bytes:
    """A record of quota limits."""
    return _rows(QuotaLimit._fields, limits)


def decode_limits(record: bytes) -> list[QuotaLimit]:
    """Raises ValueError when the record is not quota limits."""
    return [QuotaLimit(**row) for row in _named(QuotaLimit._fields, record)]


def _rows(names: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> bytes:
    return orjson.dumps({"fields": names, "rows": rows}, default=list)


def _named(known: tuple[str, ...], record: bytes) -> list[dict[str, Any]]:
    """Rows as dictionaries of the known fields. Raises ValueError."""
    try:
        found = orjson.loads(record)
        columns = [(n, name) for n, name in enumerate(found["fields"]) if name in known]
        return [{name: row[n] for n, name in columns} for row in found["rows"]]
    except (KeyError, TypeError, IndexError) as exc:
        raise ValueError(f"cannot read rows of {len(record)} bytes: {exc}") from exc


def _sender(record: bytes, at: int) -> tuple[Connection, str, int]:
    """Connection and client id at `at`, and the position after them."""
    connection_len, client_id_len = _unpack(_SENDER_HEAD, record, at)
    start = at + _SENDER_HEAD.size
    middle = start + connection_len
    end = middle + client_id_len
    return _connection(record[start:middle]), record[middle:end].decode(), end


def _unpack(head: struct.Struct, record: bytes, at: int = 0) -> tuple[Any, ...]:
    try:
        return head.unpack_from(record, at)
    except struct.error as exc:
        raise ValueError(f"cannot read a record of {len(record)} bytes: {exc}") from exc


@lru_cache(maxsize=65_536)
def _connection(encoded: bytes) -> Connection:
    try:
        found = orjson.loads(encoded)
        return Connection(**{name: found.get(name, _CONNECTION_DEFAULTS.get(name)) for name in _CONNECTION_FIELDS})
    except (TypeError, AttributeError) as exc:
        raise ValueError(f"cannot read a connection of {len(encoded)} bytes: {exc}") from exc
