"""Reads topics from a Metadata response, without building entities of a hundred thousand partitions. Sans-I/O.

Source: MetadataResponse.json of Apache Kafka 4.3. Versions up to 8 have no varints, so they are preferred.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kio.index import load_response_schema

from quota_metrics.kafka.frames import decode_head, interrupt
from quota_metrics.kafka.primitives import ProtocolError, Reader

_METADATA: Final = 3
_LAST_PLAIN: Final = 8
VERSIONS: Final = (*range(_LAST_PLAIN, -1, -1), *range(13, _LAST_PLAIN, -1))  # best first
_COUNT: Final = struct.Struct(">i")
_WITH_EPOCH: Final = struct.Struct(">hiiii")  # error_code, partition_index, leader_id, leader_epoch, replicas
_WITHOUT_EPOCH: Final = struct.Struct(">hiii")


def partition_counts(version: int, reader: Reader) -> dict[str, int]:
    """Topic -> number of partitions, of the topics without an error. Raises ProtocolError."""
    if version > _LAST_PLAIN:  # a broker without the preferred versions
        response: Any = decode_head(load_response_schema(_METADATA, version), reader.raw(reader.remaining))[0]
        return {topic.name or "": len(topic.partitions) for topic in response.topics if not topic.error_code}
    if version >= 3:
        reader.skip(4)  # throttle_time_ms
    for _ in range(reader.array_length(10)):
        reader.skip(4)  # node_id
        reader.nullable_string()
        reader.skip(4)  # port
        if version >= 1:
            reader.nullable_string()  # rack
    if version >= 2:
        reader.nullable_string()  # cluster_id
    if version >= 1:
        reader.skip(4)  # controller_id
    data = reader.raw(reader.remaining)
    at, is_internal, operations = 0, int(version >= 1), 4 if version >= 8 else 0
    counts = {}
    try:
        (topics,) = _COUNT.unpack_from(data, at)
        at += 4
        for _ in range(topics):
            error_code, length = struct.unpack_from(">hh", data, at)
            begin = at + 4
            at = begin + max(length, 0) + is_internal
            name = data[begin : begin + max(length, 0)].decode("utf-8", "replace")
            (partitions,) = _COUNT.unpack_from(data, at)
            at = _pass_partitions(version, data, at + 4, partitions) + operations
            if not error_code:
                counts[name] = max(partitions, 0)
    except struct.error as exc:
        raise ProtocolError(f"cannot read the topics of Metadata at offset {at}: {exc}") from exc
    return counts


def _pass_partitions(version: int, data: bytes, at: int, count: int) -> int:
    """The offset behind them. Raises struct.error."""
    head, following = (_WITH_EPOCH if version >= 7 else _WITHOUT_EPOCH), 2 if version >= 5 else 1
    for number in range(count):
        fields = head.unpack_from(data, at)
        at += head.size + 4 * max(fields[-1], 0)
        for _ in range(following):  # isr_nodes, offline_replicas
            (size,) = _COUNT.unpack_from(data, at)
            at += 4 + 4 * max(size, 0)
        if number % 64 == 63:
            interrupt()
    interrupt()
    return at
