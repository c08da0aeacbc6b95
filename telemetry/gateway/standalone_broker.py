"""Responses of a listener without a cluster: ApiVersions, Metadata with itself as the only node, CLIENT_METRICS.

Sans-I/O except for the file that subscriptions are stored in. A client that bootstraps from it sees a cluster of one
node without topics, and pushes its metrics there; Kafka's own tools alter its subscriptions.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog
from kio.index import load_request_schema

from exporters.model import Connection
from quota_metrics.kafka.frames import decode_head, response_body
from quota_metrics.kafka.primitives import ProtocolError, Reader
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
from telemetry.wire.config_messages import MAX_RESOURCES
from telemetry.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

NODE_ID = 0
_NO_OPERATIONS = -(2**31)  # authorized operations that were not requested
_AT_ONCE = timedelta()  # the client is not throttled
_MAX_ADDRESSES = 256  # at which clients reached this listener
ALL_VERSIONS: Final = {
    key: (0, APIS[key].max_version) for key in (METADATA, API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
}
_OFFERED: Final = ALL_VERSIONS | {
    DESCRIBE_CONFIGS: (1, APIS[DESCRIBE_CONFIGS].max_version),  # 0 has another layout and was removed in Kafka 4
    **{key: (0, APIS[key].max_version) for key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES)},
}


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
    is_valid = version < 3 or all(software_of(body))
    return _own_api_versions(version, ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST)


def api_versions(offered: Mapping[int, tuple[int, int]], version: int, code: ErrorCode = ErrorCode.NONE) -> bytes:
    """The body of an ApiVersions response (0 to 4): the oldest and the newest version by API, or none with an error."""
    api_keys = [
        {"api_key": key, "min_version": oldest, "max_version": newest}
        for key, (oldest, newest) in sorted(offered.items())
    ]
    fields = {"error_code": code, "api_keys": [] if code else api_keys, "throttle_time": _AT_ONCE}
    return response_body(API_VERSIONS, version, fields)


_own_api_versions = cache(partial(api_versions, _OFFERED))  # each client asks once per connection


def metadata(body: bytes, version: int, node: SinkNode, topic: str | None = None) -> bytes:
    """The body of a Metadata response (0 to 13): this node, and UNKNOWN_TOPIC errors for all requested topics but
    `topic`, which has one partition.

    Raises ProtocolError when the request cannot be read, or asks for very many topics.
    """
    count = Reader(body).compact_array_length() if version >= 9 else Reader(body).array_length()
    if count > MAX_RESOURCES:
        raise ProtocolError(f"cannot answer for {count} topics at once: at most {MAX_RESOURCES}")
    request: Any = decode_head(load_request_schema(METADATA, version), body)[0]
    if count < 0 or (version == 0 and not count):  # all
        names = [(topic, None)] if topic else []
    else:
        names = [(requested.name, getattr(requested, "topic_id", None)) for requested in request.topics]
    fields = {
        "throttle_time": _AT_ONCE,
        "brokers": [{"node_id": NODE_ID, "host": node.host, "port": node.port, "rack": None}],
        "cluster_id": node.cluster_id,
        "controller_id": NODE_ID,
        "topics": [_topic(version, name, topic_id, topic) for name, topic_id in names],
        "cluster_authorized_operations": _NO_OPERATIONS,
        "error_code": ErrorCode.NONE,
    }
    return response_body(METADATA, version, fields)


def _topic(version: int, name: str | None, topic_id: UUID | None, existing: str | None) -> dict[str, Any]:
    """With one partition at the only node, if it is the `existing` one."""
    exists = name is not None and name == existing
    partition = {
        "error_code": ErrorCode.NONE,
        "partition_index": 0,
        "leader_id": NODE_ID,
        "leader_epoch": 0,
        "replica_nodes": [NODE_ID],
        "isr_nodes": [NODE_ID],
        "offline_replicas": [],
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "error_code": ErrorCode.NONE if exists else unknown,
        "name": name if version >= 12 else name or "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [partition] if exists else [],
        "topic_authorized_operations": _NO_OPERATIONS,
    }
