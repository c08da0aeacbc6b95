"""Responses of a listener without a cluster: ApiVersions, Metadata with itself as the only node, CLIENT_METRICS.

Sans-I/O except for the file that subscriptions are stored in. A client that bootstraps from it sees a cluster of one
node without topics, and pushes its metrics there; Kafka's own tools alter its subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import structlog

from exporters.model import Connection
from quota_metrics.kafka.primitives import (
    Reader,
    write_array_length,
    write_boolean,
    write_compact_array_length,
    write_compact_nullable_string,
    write_compact_string,
    write_int16,
    write_int32,
    write_no_tagged,
    write_nullable_string,
    write_string,
)
from telemetry.gateway.networks import Administrators
from telemetry.gateway.responses import LocalAnswer
from telemetry.gateway.security.client_identity import software_of
from telemetry.subscriptions.config_admin import Alteration, alter, describe, list_resources
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from telemetry.wire.apis import (
    ALTER_CONFIGS,
    API_VERSIONS,
    APIS,
    DESCRIBE_CONFIGS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    METADATA,
    PUSH_TELEMETRY,
)
from telemetry.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

NODE_ID = 0
_NO_OPERATIONS = -(2**31)  # authorized operations that were not requested
_NO_TOPIC = bytes(16)
_MAX_ADDRESSES = 256  # at which clients reached this listener
_OFFERED = (
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    LIST_CONFIG_RESOURCES,
)
# Version 0 has another layout and was removed in Kafka 4.
_VERSIONS: Mapping[int, tuple[int, int]] = {DESCRIBE_CONFIGS: (1, APIS[DESCRIBE_CONFIGS].max_version)}


class SinkNode(NamedTuple):
    """The advertised address and the cluster id."""

    host: str
    port: int
    cluster_id: str


class SinkAnswers:
    """Answers as a cluster of one node. Subscriptions are stored in a file.

    Clients other than `administrators` may read subscriptions but not alter them.
    """

    def __init__(self, cluster_id: str, file: SubscriptionFile, administrators: Administrators) -> None:
        self._cluster_id = cluster_id
        self._file = file
        self._administrators = administrators
        # By API key: the same for all clients that get the same address and have the same rights.
        self._answers = lru_cache(_MAX_ADDRESSES)(self._answers_at)

    def found_at(self, host: str, port: int, client: Connection) -> Mapping[int, LocalAnswer]:
        """The handlers for a client, given the address that is advertised to it."""
        return self._answers(host, port, self._administrators.include(client))

    def _answers_at(self, host: str, port: int, is_administrator: bool) -> Mapping[int, LocalAnswer]:
        node = SinkNode(host, port, self._cluster_id)
        return {
            METADATA: lambda version, body: metadata(body, version, node),
            API_VERSIONS: _answer_api_versions,
            DESCRIBE_CONFIGS: lambda version, body: describe(version, body, self._rules().resources),
            LIST_CONFIG_RESOURCES: lambda version, body: list_resources(version, body, self._rules().subscriptions),
            ALTER_CONFIGS: partial(self._alter, is_administrator, ALTER_CONFIGS),
            INCREMENTAL_ALTER_CONFIGS: partial(self._alter, is_administrator, INCREMENTAL_ALTER_CONFIGS),
        }

    def _rules(self) -> ClientMetrics:
        """The current content of the file, which another process may have altered."""
        self._file.follow()
        return self._file.rules

    def _alter(self, is_administrator: bool, api_key: int, version: int, body: bytes) -> bytes:
        if not is_administrator:
            rules = self._file.rules
            return alter(api_key, version, body, rules.resources, rules.match_keys, is_authorized=False).answer()
        try:
            with self._file.alone():
                alteration = self._alteration(api_key, version, body)
                if alteration.changes:
                    self._file.keep(alteration.changes)
                return alteration.answer()
        except OSError as exc:
            log.error("cannot keep subscriptions", error=str(exc))
            reason = f"cannot store client metrics resources: {exc.strerror or exc}"
            return self._alteration(api_key, version, body).not_kept(reason)

    def _alteration(self, api_key: int, version: int, body: bytes) -> Alteration:
        rules = self._file.rules
        return alter(api_key, version, body, rules.resources, rules.match_keys)


def _answer_api_versions(version: int, body: bytes) -> bytes:
    valid = version < 3 or all(software_of(body))
    return api_versions(_OFFERED, version, ErrorCode.NONE if valid else ErrorCode.INVALID_REQUEST)


def api_versions(
    keys: Iterable[int],
    version: int,
    code: ErrorCode = ErrorCode.NONE,
    versions: Mapping[int, tuple[int, int]] = _VERSIONS,
) -> bytes:
    """The body of an ApiVersions response (0 to 4) that advertises these APIs, or none with an error.

    `versions`: the oldest and the newest version of each API that is not offered whole.
    """
    flexible = version >= 3
    offered = [] if code else [APIS[key] for key in sorted({*keys, API_VERSIONS, METADATA})]
    out = bytearray()
    write_int16(out, code)
    (write_compact_array_length if flexible else write_array_length)(out, len(offered))
    for api in offered:
        for number in (api.key, *versions.get(api.key, (0, api.max_version))):
            write_int16(out, number)
        if flexible:
            write_no_tagged(out)
    if version >= 1:
        write_int32(out, 0)  # throttle_time_ms
    if flexible:
        write_no_tagged(out)
    return bytes(out)


def metadata(body: bytes, version: int, node: SinkNode, topic: str | None = None) -> bytes:
    """The body of a Metadata response (0 to 13): this node, and UNKNOWN_TOPIC errors for all requested topics but
    `topic`, which has one partition.

    Raises ProtocolError when the request cannot be read.
    """
    topics = _read_topics(Reader(body), version, topic)
    flexible = version >= 9
    out = bytearray()
    if version >= 3:
        write_int32(out, 0)  # throttle_time_ms
    (write_compact_array_length if flexible else write_array_length)(out, 1)
    write_int32(out, NODE_ID)
    (write_compact_string if flexible else write_string)(out, node.host)
    write_int32(out, node.port)
    if version >= 1:
        (write_compact_nullable_string if flexible else write_nullable_string)(out, None)  # rack
    if flexible:
        write_no_tagged(out)
    if version >= 2:
        (write_compact_nullable_string if flexible else write_nullable_string)(out, node.cluster_id)
    if version >= 1:
        write_int32(out, NODE_ID)  # controller_id
    (write_compact_array_length if flexible else write_array_length)(out, len(topics))
    for name, topic_id in topics:
        _write_topic(out, version, name, topic_id, exists=name is not None and name == topic)
    if 8 <= version <= 10:
        write_int32(out, _NO_OPERATIONS)  # cluster_authorized_operations
    if version >= 13:
        write_int16(out, ErrorCode.NONE)
    if flexible:
        write_no_tagged(out)
    return bytes(out)


def _read_topics(reader: Reader, version: int, topic: str | None) -> list[tuple[str | None, bytes]]:
    """(name, id) of the topics in a Metadata request. If it requests all, these are `topic`, or none."""
    flexible = version >= 9
    count = reader.compact_array_length(3) if flexible else reader.array_length(2)
    if count < 0 or (version == 0 and not count):
        return [(topic, _NO_TOPIC)] if topic else []
    topics: list[tuple[str | None, bytes]] = []
    for _ in range(count):
        topic_id = reader.uuid() if version >= 10 else _NO_TOPIC
        if version >= 10:
            name = reader.compact_nullable_string()
        else:
            name = reader.compact_string() if flexible else reader.string()
        if flexible:
            reader.skip_tagged()
        topics.append((name, topic_id))
    return topics


def _write_topic(out: bytearray, version: int, name: str | None, topic_id: bytes, *, exists: bool) -> None:
    """With one partition at the only node, if it exists."""
    flexible = version >= 9
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    write_int16(out, ErrorCode.NONE if exists else unknown)
    if version >= 12:
        write_compact_nullable_string(out, name)
    elif flexible:
        write_compact_string(out, name or "")
    else:
        write_string(out, name or "")
    if version >= 10:
        out += topic_id
    if version >= 1:
        write_boolean(out, False)  # is_internal
    write_length = write_compact_array_length if flexible else write_array_length
    write_length(out, int(exists))  # partitions
    if exists:
        write_int16(out, ErrorCode.NONE)
        write_int32(out, 0)
        write_int32(out, NODE_ID)
        if version >= 7:
            write_int32(out, 0)  # leader_epoch
        for _ in ("replicas", "in-sync replicas"):
            write_length(out, 1)
            write_int32(out, NODE_ID)
        if version >= 5:
            write_length(out, 0)  # offline_replicas
        if flexible:
            write_no_tagged(out)
    if version >= 8:
        write_int32(out, _NO_OPERATIONS)
    if flexible:
        write_no_tagged(out)
