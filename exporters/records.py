"""Shared words as bytes and back, for the spool. Sans-I/O.

A push is a fixed head, the connection's facts, the client id, and the payload untouched:

    received_at_ms i64 | client_instance_id 16s | subscription_id i32 | terminating u8 | compression_type u8
    | connection_len u16 | client_id_len u16 | connection (JSON) | client_id (UTF-8) | payload

The connection's JSON is the same for each push of a connection: encode it once with `connection_bytes`.
Everything else is rare and goes as JSON.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from exporters.model import ClientInstance, Connection, Push, QuotaLimit, UsageSample

_PUSH_HEAD = struct.Struct(">q16siBBHH")
_INSTANCE_HEAD = struct.Struct(">q16sHH")


def connection_bytes(connection: Connection) -> bytes:
    """The facts of a connection as JSON."""
    return orjson.dumps(dataclasses.asdict(connection))


def push_head(push: Push, connection: bytes) -> bytes:
    """A push record but for its payload, which follows as it came."""
    client_id = push.client_id.encode("utf-8", "replace")
    return (
        _PUSH_HEAD.pack(
            push.received_at_ms,
            push.client_instance_id,
            push.subscription_id,
            push.terminating,
            push.compression_type,
            len(connection),
            len(client_id),
        )
        + connection
        + client_id
    )


def decode_push(record: bytes) -> Push:
    """Raises ValueError when the record is not a push."""
    received_at_ms, instance_id, subscription_id, terminating, compression, clen, ilen = _unpack(_PUSH_HEAD, record)
    start = _PUSH_HEAD.size + clen
    return Push(
        connection=_connection(record[_PUSH_HEAD.size : start]),
        client_id=record[start : start + ilen].decode(),
        client_instance_id=instance_id,
        received_at_ms=received_at_ms,
        subscription_id=subscription_id,
        terminating=bool(terminating),
        compression_type=compression,
        payload=record[start + ilen :],
    )


def encode_instance(instance: ClientInstance, connection: bytes) -> bytes:
    """A client instance record."""
    client_id = instance.client_id.encode("utf-8", "replace")
    head = _INSTANCE_HEAD.pack(instance.seen_at_ms, instance.client_instance_id, len(connection), len(client_id))
    return head + connection + client_id


def decode_instance(record: bytes) -> ClientInstance:
    """Raises ValueError when the record is not a client instance."""
    seen_at_ms, instance_id, clen, ilen = _unpack(_INSTANCE_HEAD, record)
    start = _INSTANCE_HEAD.size + clen
    return ClientInstance(
        connection=_connection(record[_INSTANCE_HEAD.size : start]),
        client_id=record[start : start + ilen].decode(),
        client_instance_id=instance_id,
        seen_at_ms=seen_at_ms,
    )


def encode_usage(samples: Sequence[UsageSample]) -> bytes:
    """Usage samples as JSON rows."""
    return orjson.dumps(samples, default=list)


def decode_usage(record: bytes) -> list[UsageSample]:
    """Raises ValueError when the record is not usage samples."""
    return [UsageSample(*row) for row in orjson.loads(record)]


def encode_limits(limits: Sequence[QuotaLimit]) -> bytes:
    """Quota limits as JSON rows."""
    return orjson.dumps(limits, default=list)


def decode_limits(record: bytes) -> list[QuotaLimit]:
    """Raises ValueError when the record is not quota limits."""
    return [QuotaLimit(*row) for row in orjson.loads(record)]


def _unpack(head: struct.Struct, record: bytes) -> tuple[Any, ...]:
    try:
        return head.unpack_from(record)
    except struct.error as exc:
        raise ValueError(f"cannot read a record of {len(record)} bytes: {exc}") from exc


@lru_cache(maxsize=65_536)
def _connection(encoded: bytes) -> Connection:
    try:
        return Connection(**orjson.loads(encoded))
    except TypeError as exc:
        raise ValueError(f"cannot read a connection of {len(encoded)} bytes: {exc}") from exc
