"""Encodes and decodes the configuration APIs: ListConfigResources, DescribeConfigs, (Incremental)AlterConfigs.

Sans-I/O. Source: Kafka 4.3's message definitions; a test compares with kio's generated schema. Each `read_*` raises
ProtocolError on a malformed body and on requests over the limits below.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from quota_metrics.kafka.primitives import (
    ProtocolError,
    Reader,
    write_array_length,
    write_boolean,
    write_compact_array_length,
    write_compact_nullable_string,
    write_int8,
    write_int16,
    write_int32,
    write_no_tagged,
    write_nullable_string,
)
from telemetry.wire.apis import APIS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from telemetry.wire.errors import ErrorCode

MAX_RESOURCES: Final = 10_000  # in one request: an answer may be a hundred times as long as what is asked
_MAX_MESSAGE_CHARS = 8_000  # fits the length field of a string, however it is encoded
_MAX_RESPONSE_BYTES = 16 << 20


class ResourceType(IntEnum):
    """org.apache.kafka.common.config.ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """org.apache.kafka.clients.admin.AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class KeyChange(NamedTuple):
    """The change of one key. `operation`: the raw value."""

    key: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """The change of one resource. `kind`: the raw resource type."""

    kind: int
    name: str
    keys: list[KeyChange]


class AlterRequest(NamedTuple):
    """A request of either API; AlterConfigs replaces all keys of a resource."""

    resources: list[ResourceChange]
    validate_only: bool


class DescribedResource(NamedTuple):
    """The requested keys of a resource; empty means all."""

    kind: int
    name: str
    keys: Collection[str]


class DescribeRequest(NamedTuple):
    """DescribeConfigs."""

    resources: list[DescribedResource]
    synonyms: bool
    documentation: bool


class ConfigEntry(NamedTuple):
    """One key of a DescribeConfigs response. `synonym`: list it as its own synonym if synonyms are requested."""

    key: str
    value: str
    source: int
    synonym: bool
    type: int
    documentation: str | None


class ResourceResult(NamedTuple):
    """The result for one resource of an AlterRequest, or of a DescribeRequest, which asks for `entries`."""

    kind: int
    name: str
    code: ErrorCode
    message: str | None
    entries: Sequence[ConfigEntry] = ()


def read_alter(api_key: int, version: int, body: bytes) -> AlterRequest:
    """IncrementalAlterConfigs (0, 1) and AlterConfigs (0 to 2)."""
    reader, flexible = Reader(body), APIS[api_key].flexible(version)
    resources = []
    for _ in range(_resources(reader, flexible)):
        kind, name = reader.int8(), _required(reader, flexible)
        keys = []
        for _ in range(_count(reader, flexible)):
            key = _required(reader, flexible)
            operation = reader.int8() if api_key == INCREMENTAL_ALTER_CONFIGS else int(Operation.SET)
            value = reader.compact_nullable_string() if flexible else reader.nullable_string()
            _skip_end(reader, flexible)
            keys.append(KeyChange(key, operation, value))
        _skip_end(reader, flexible)
        resources.append(ResourceChange(kind, name, keys))
    request = AlterRequest(resources, validate_only=reader.boolean())
    _skip_end(reader, flexible)
    return request


def write_altered(api_key: int, version: int, results: Sequence[ResourceResult]) -> bytes:
    """The response, which is the same for both APIs."""
    flexible = APIS[api_key].flexible(version)
    out = bytearray(4)  # throttle_time_ms
    _write_length(out, len(results), flexible)
    for result in results:
        write_int16(out, result.code)
        _write_string(out, result.message and result.message[:_MAX_MESSAGE_CHARS], flexible)
        write_int8(out, result.kind)
        _write_string(out, result.name, flexible)
        _write_end(out, flexible)
    _write_end(out, flexible)
    return bytes(out)


def read_describe(version: int, body: bytes) -> DescribeRequest:
    """DescribeConfigs, versions 1 to 4."""
    if version < 1:
        raise ProtocolError(f"cannot answer DescribeConfigs version {version}")
    reader, flexible = Reader(body), APIS[DESCRIBE_CONFIGS].flexible(version)
    resources = []
    for _ in range(_resources(reader, flexible)):
        kind, name = reader.int8(), _required(reader, flexible)
        length = reader.compact_array_length() if flexible else reader.array_length(2)
        keys = [_required(reader, flexible) for _ in range(length)]  # null means all, too
        _skip_end(reader, flexible)
        resources.append(DescribedResource(kind, name, keys))
    synonyms = reader.boolean()
    documentation = version >= 3 and reader.boolean()
    _skip_end(reader, flexible)
    return DescribeRequest(resources, synonyms, documentation)


def write_described(version: int, request: DescribeRequest, results: Sequence[ResourceResult]) -> bytes:
    """The response to `request`. Raises ProtocolError when it exceeds the limit."""
    flexible = APIS[DESCRIBE_CONFIGS].flexible(version)
    out = bytearray(4)  # throttle_time_ms
    _write_length(out, len(results), flexible)
    for result in results:
        write_int16(out, result.code)
        _write_string(out, result.message, flexible)
        write_int8(out, result.kind)
        _write_string(out, result.name, flexible)
        _write_length(out, len(result.entries), flexible)
        for entry in result.entries:
            _write_string(out, entry.key, flexible)
            _write_string(out, entry.value, flexible)
            write_boolean(out, False)  # read_only
            write_int8(out, entry.source)
            write_boolean(out, False)  # is_sensitive
            listed = request.synonyms and entry.synonym
            _write_length(out, int(listed), flexible)
            if listed:
                _write_string(out, entry.key, flexible)
                _write_string(out, entry.value, flexible)
                write_int8(out, entry.source)
                _write_end(out, flexible)
            if version >= 3:
                write_int8(out, entry.type)
                _write_string(out, entry.documentation if request.documentation else None, flexible)
            _write_end(out, flexible)
        _write_end(out, flexible)
        if len(out) > _MAX_RESPONSE_BYTES:
            raise ProtocolError(f"cannot describe {len(results)} resources in {_MAX_RESPONSE_BYTES} bytes")
    _write_end(out, flexible)
    return bytes(out)


def read_list(version: int, body: bytes) -> list[int]:
    """The resource types that ListConfigResources (0, 1) asks for; an empty list means all."""
    reader = Reader(body)
    kinds = [] if version == 0 else [reader.int8() for _ in range(_count(reader, flexible=True))]
    reader.skip_tagged()
    return kinds


def write_list(version: int, code: ErrorCode, names: Collection[str]) -> bytes:
    """The response. All resources are of type CLIENT_METRICS."""
    flexible = APIS[LIST_CONFIG_RESOURCES].flexible(version)
    out = bytearray()
    write_int32(out, 0)  # throttle_time_ms
    write_int16(out, code)
    _write_length(out, len(names), flexible)
    for name in names:
        _write_string(out, name, flexible)
        if version >= 1:
            write_int8(out, ResourceType.CLIENT_METRICS)
        _write_end(out, flexible)
    _write_end(out, flexible)
    return bytes(out)


def _resources(reader: Reader, flexible: bool) -> int:
    count = _count(reader, flexible)
    if count > MAX_RESOURCES:
        raise ProtocolError(f"cannot answer for {count} resources at once: at most {MAX_RESOURCES}")
    return count


def _count(reader: Reader, flexible: bool) -> int:
    count = reader.compact_array_length() if flexible else reader.array_length()
    if count < 0:
        raise ProtocolError("cannot read an array: null where Kafka's schema allows none")
    return count


def _required(reader: Reader, flexible: bool) -> str:
    return reader.compact_string() if flexible else reader.string()


def _skip_end(reader: Reader, flexible: bool) -> None:
    if flexible:
        reader.skip_tagged()


def _write_length(out: bytearray, count: int, flexible: bool) -> None:
    (write_compact_array_length if flexible else write_array_length)(out, count)


def _write_string(out: bytearray, text: str | None, flexible: bool) -> None:
    (write_compact_nullable_string if flexible else write_nullable_string)(out, text)


def _write_end(out: bytearray, flexible: bool) -> None:
    if flexible:
        write_no_tagged(out)
