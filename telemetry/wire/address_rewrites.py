"""Replaces broker addresses in responses with the gateway's, and adds 71 and 72 to ApiVersions. Sans-I/O.

Only the part of a body that holds addresses is decoded; the rest is forwarded unchanged. `body` is a response without
its header; each function raises ProtocolError when it cannot be parsed.
"""

from collections.abc import Callable
from typing import Final

from quota_metrics.kafka.primitives import (
    Reader,
    write_array_length,
    write_compact_array_length,
    write_compact_string,
    write_int16,
    write_int32,
    write_string,
    write_uvarint,
)
from telemetry.wire.apis import (
    APIS,
    DESCRIBE_CLUSTER,
    FIND_COORDINATOR,
    GET_TELEMETRY_SUBSCRIPTIONS,
    METADATA,
    PUSH_TELEMETRY,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)

# (node id, host, port) of a broker -> (host, port) of its listener on the gateway.
AddressOf = Callable[[int, str, int], tuple[str, int]]
Rewrite = Callable[[bytes, int, AddressOf], bytes]

_CONTROLLER_ENDPOINT: Final = 2  # DescribeCluster's EndpointType (KIP-919)
_NODE_ENDPOINTS_TAG: Final = 0
_NO_ERROR: Final = b"\x00\x00"


def api_versions(body: bytes, version: int) -> bytes:
    """The broker's list, limited to the versions that the gateway supports, plus 71 and 72. An error stays as it is:
    the body of UNSUPPORTED_VERSION is always version 0 (KIP-511)."""
    if body[:2] != _NO_ERROR:
        return body
    flexible = version >= 3
    reader = Reader(body, 2)
    count = reader.compact_array_length(7) if flexible else reader.array_length(6)
    offered: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        key, least, most = reader.int16(), reader.int16(), reader.int16()
        if flexible:
            reader.skip_tagged()
        api = APIS.get(key)
        if api is not None:  # the responses of an API that is not in the table may name brokers
            least, most = max(least, 0), min(most, api.max_version)
            if least <= most:
                offered[key] = (least, most)
    for key in (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY):
        offered[key] = (0, 0)
    out = bytearray(body[:2])
    (write_compact_array_length if flexible else write_array_length)(out, len(offered))
    for key, (least, most) in sorted(offered.items()):
        write_int16(out, key)
        write_int16(out, least)
        write_int16(out, most)
        if flexible:
            out.append(0)
    return bytes(out) + body[reader.offset :]


def metadata(body: bytes, version: int, address_of: AddressOf) -> bytes:
    """Metadata (3), versions 0 to 13."""
    reader = Reader(body)
    if version >= 3:
        reader.skip(4)  # throttle_time_ms
    out = bytearray(body[: reader.offset])
    _nodes(reader, out, address_of, flexible=version >= 9, rack=version >= 1)
    return bytes(out) + body[reader.offset :]


def describe_cluster(body: bytes, version: int, address_of: AddressOf) -> bytes:
    """DescribeCluster (60), versions 0 to 2. Addresses of controllers are not changed."""
    reader = Reader(body)
    reader.skip(4 + 2)  # throttle_time_ms, error_code
    reader.compact_nullable_string()  # error_message
    if version >= 1 and reader.int8() == _CONTROLLER_ENDPOINT:
        return body
    reader.compact_nullable_string()  # cluster_id
    reader.skip(4)  # controller_id
    out = bytearray(body[: reader.offset])
    _nodes(reader, out, address_of, flexible=True, rack=True, extra_bytes=1 if version >= 2 else 0)
    return bytes(out) + body[reader.offset :]


def find_coordinator(body: bytes, version: int, address_of: AddressOf) -> bytes:
    """FindCoordinator (10), versions 0 to 6."""
    reader = Reader(body)
    if version >= 1:
        reader.skip(4)  # throttle_time_ms
    if version < 4:
        reader.skip(2)  # error_code
        if version >= 3:
            reader.compact_nullable_string()  # error_message
        elif version >= 1:
            reader.nullable_string()
        out = bytearray(body[: reader.offset])
        _address(reader, out, address_of, flexible=version >= 3)
        return bytes(out) + body[reader.offset :]
    count = reader.compact_array_length(12)
    out = bytearray(body[: reader.offset])
    for _ in range(count):
        start = reader.offset
        reader.compact_string()  # key
        out += body[start : reader.offset]
        _address(reader, out, address_of, flexible=True)
        start = reader.offset
        reader.skip(2)  # error_code
        reader.compact_nullable_string()  # error_message
        reader.skip_tagged()
        out += body[start : reader.offset]
    return bytes(out) + body[reader.offset :]


def produce(frame: bytes, start: int, version: int, address_of: AddressOf) -> tuple[bytes, int]:
    """Produce (0), versions 0 to 13: from version 10 on it may name new leaders (KIP-951), which nearly none does.

    The body begins at `start` of `frame`. Returns the rewritten body, empty when nothing is replaced, and
    throttle_time_ms, which follows the topics.
    """
    if version == 0:
        return b"", 0
    if version < 10:  # throttle_time_ms is the last field; in version 9 the empty set of tagged fields follows it
        end = len(frame) - (version == 9)
        last = max(end - 4, start)
        return b"", int.from_bytes(frame[last:end], "big", signed=True)
    reader = Reader(frame, start)
    for _ in range(reader.compact_array_length(3)):
        if version >= 13:
            reader.skip(16)  # topic_id
        else:
            reader.skip(max(reader.uvarint() - 1, 0))  # name
        for _ in range(reader.compact_array_length(33)):
            reader.skip(4 + 2 + 8 + 8 + 8)  # index, error_code, base_offset, log_append_time_ms, log_start_offset
            for _ in range(reader.compact_array_length(6)):
                reader.skip(4)  # batch_index
                reader.compact_nullable_string()
                reader.skip_tagged()
            reader.compact_nullable_string()  # error_message
            reader.skip_tagged()
        reader.skip_tagged()
    throttle_ms = reader.int32()
    if reader.remaining == 1 and frame[-1] == 0:
        return b"", throttle_ms  # no tagged fields: nothing moved
    out = bytearray(frame[start : reader.offset])
    count = reader.uvarint()
    write_uvarint(out, count)
    for _ in range(count):
        tag, size = reader.uvarint(), reader.uvarint()
        field = Reader(frame, reader.offset)
        reader.skip(size)
        value = bytearray()
        if tag == _NODE_ENDPOINTS_TAG:
            _nodes(field, value, address_of, flexible=True, rack=True)
        else:
            value += frame[field.offset : reader.offset]
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value
    return bytes(out) + frame[reader.offset :], throttle_ms


def share_fetch(body: bytes, version: int, address_of: AddressOf) -> bytes:
    """ShareFetch (78), versions 0 (of Kafka 4.0) to 2."""
    return _share(body, address_of, has_lock_timeout=version >= 1, has_records=True)


def share_acknowledge(body: bytes, version: int, address_of: AddressOf) -> bytes:
    """ShareAcknowledge (79), versions 0 (of Kafka 4.0) to 2."""
    return _share(body, address_of, has_lock_timeout=version >= 2, has_records=False)


def _share(body: bytes, address_of: AddressOf, *, has_lock_timeout: bool, has_records: bool) -> bytes:
    reader = Reader(body)
    reader.skip(4 + 2)  # throttle_time_ms, error_code
    reader.compact_nullable_string()  # error_message
    if has_lock_timeout:
        reader.skip(4)  # acquisition_lock_timeout_ms
    for _ in range(reader.compact_array_length(18)):
        reader.skip(16)  # topic_id
        for _ in range(reader.compact_array_length(20 if has_records else 8)):
            reader.skip(4 + 2)  # index, error_code
            reader.compact_nullable_string()  # error_message
            if has_records:
                reader.skip(2)  # acknowledge_error_code
                reader.compact_nullable_string()  # acknowledge_error_message
            reader.skip(4 + 4)  # leader_id, leader_epoch
            reader.skip_tagged()  # of the leader
            if has_records:
                reader.skip(max(reader.uvarint() - 1, 0))  # records
                for _ in range(reader.compact_array_length(19)):
                    reader.skip(8 + 8 + 2)  # first_offset, last_offset, delivery_count
                    reader.skip_tagged()
            reader.skip_tagged()
        reader.skip_tagged()
    out = bytearray(body[: reader.offset])
    _nodes(reader, out, address_of, flexible=True, rack=True)
    return bytes(out) + body[reader.offset :]


# The APIs whose responses are collected and rewritten; PRODUCE beside them.
REWRITES: Final[dict[int, Rewrite]] = {
    METADATA: metadata,
    FIND_COORDINATOR: find_coordinator,
    DESCRIBE_CLUSTER: describe_cluster,
    SHARE_FETCH: share_fetch,
    SHARE_ACKNOWLEDGE: share_acknowledge,
}


def _nodes(
    reader: Reader, out: bytearray, address_of: AddressOf, *, flexible: bool, rack: bool, extra_bytes: int = 0
) -> None:
    """Rewrites an array of brokers: node_id, host, port, rack, and `extra_bytes` that are copied."""
    count = reader.compact_array_length(11) if flexible else reader.array_length(10)
    (write_compact_array_length if flexible else write_array_length)(out, count)
    for _ in range(count):
        _address(reader, out, address_of, flexible=flexible)
        start = reader.offset
        if rack:
            _ = reader.compact_nullable_string() if flexible else reader.nullable_string()
        reader.skip(extra_bytes)
        if flexible:
            reader.skip_tagged()
        out += reader.between(start, reader.offset)


def _address(reader: Reader, out: bytearray, address_of: AddressOf, *, flexible: bool) -> None:
    node_id = reader.int32()
    host = reader.compact_string() if flexible else reader.string()
    port = reader.int32()
    if node_id >= 0:  # -1 with an empty host means "none"
        host, port = address_of(node_id, host, port)
    write_int32(out, node_id)
    (write_compact_string if flexible else write_string)(out, host)
    write_int32(out, port)
