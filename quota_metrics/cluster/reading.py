"""Asks the brokers, and reads the facts of the cluster off their responses (kio's entities). What a right or an old
release does not allow is a fact, too: `unread`."""

import asyncio
import struct
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

from kio.index import load_response_schema

from quota_metrics.cluster.facts import (
    BROKER_CONFIGS,
    CONNECTIONS,
    METADATA_VERSION,
    PARTITIONS_OF_TOPICS,
    PROTOCOL_VERSION,
    REASSIGNMENTS,
    THROTTLED_REPLICAS,
    AddressQuota,
    BrokerFacts,
    ClusterFacts,
    HostAcl,
    Release,
    Unread,
    release_of,
    release_of_level,
)
from quota_metrics.cluster.replication import LOG_DIRS_RATE, REPLICATION_RATES, REPLICATION_REPLICAS
from quota_metrics.config.entities import IP, FilterComponent, MatchType, address_rates
from quota_metrics.kafka.admin import METADATA, NOT_CONTROLLER, KafkaAdmin, describe_configs, metadata_request
from quota_metrics.kafka.errors import ClusterError, RefusedError, check, one_line
from quota_metrics.kafka.frames import NegotiatedRequest, decode_head, interrupt
from quota_metrics.kafka.primitives import ProtocolError, Reader

T = TypeVar("T")

_API_VERSIONS: Final = 18
_DESCRIBE_ACLS: Final = 29
_DESCRIBE_LOG_DIRS: Final = 35
_LIST_REASSIGNMENTS: Final = 46
_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
_ANY = 1
_SECURITY_DISABLED: Final = 54
_AT_ONCE: Final = 8  # brokers
_TOPICS_PER_REQUEST: Final = 50  # encoded on the loop
_MOST_TOPICS: Final = 20_000
_LONGEST_TOPIC: Final = 249  # characters, which are bytes
_LIST_CONFIG_RESOURCES: Final = 74  # CLIENT_METRICS came with it (ListClientMetricsResources of 3.7)
_MOST_VALUE_CHARS: Final = 32_767  # Kafka's longest string: max.connections.per.ip.overrides is applied, so never cut

# org.apache.kafka.common.acl.{AclOperation, AclPermissionType} and resource.{ResourceType, PatternType}, by code
_OPERATIONS: Final = (
    "UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
_PERMISSIONS: Final = ("UNKNOWN", "ANY", "DENY", "ALLOW")
_RESOURCES: Final = ("UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
_PREFIXED: Final = 4

# MetadataResponse.json of Apache Kafka 4.3. Versions up to 8 have no varints, so they are preferred.
_LAST_PLAIN: Final = 8
METADATA_VERSIONS: Final = (*range(_LAST_PLAIN, -1, -1), *range(13, _LAST_PLAIN, -1))  # best first
_COUNT: Final = struct.Struct(">i")
_WITH_EPOCH: Final = struct.Struct(">hiiii")  # error_code, partition_index, leader_id, leader_epoch, replicas
_WITHOUT_EPOCH: Final = struct.Struct(">hiii")


async def read_facts(admin: KafkaAdmin) -> ClusterFacts:
    """Asks each broker for its versions and configuration, one of them for quotas of addresses, ACLs and topics.

    Needs DescribeConfigs and Describe on the cluster, and DescribeConfigs on topics. Raises ClusterError when the
    brokers themselves cannot be listed.
    """
    cluster = await admin.describe_cluster()
    some = asyncio.Semaphore(_AT_ONCE)

    async def read_in_turn(broker_id: int) -> tuple[BrokerFacts, Release | None, list[Unread]]:
        async with some:
            return await _read_broker(admin, broker_id)

    brokers = await asyncio.gather(*(read_in_turn(node.id) for node in sorted(cluster.nodes)))
    unread = [fault for _, _, faults in brokers for fault in faults]
    of_addresses = admin.describe_client_quotas([FilterComponent(IP, MatchType.ANY)])
    rates = address_rates(await _or_unread(of_addresses, unread, {}, _ADDRESS_QUOTAS))
    has_authorizer, acls = await _or_unread(_read_acls(admin), unread, (None, ()), _ACLS)
    counting = admin.send(metadata_request(None, versions=METADATA_VERSIONS), read=partition_counts)
    partitions: Mapping[str, int] = await _or_unread(counting, unread, {}, _PARTITIONS)
    topics = await _or_unread(_read_throttled_replicas(admin, partitions), unread, {}, _TOPICS)
    reassigning = await _or_unread(_count_reassigning(admin, cluster.controller_id), unread, None, _REASSIGNMENTS)
    return ClusterFacts(
        cluster.cluster_id,
        tuple(facts for facts, _, _ in brokers),
        next((release for _, release, _ in brokers if release), None),
        tuple(sorted((AddressQuota(*rate) for rate in rates.items()), key=lambda quota: quota.ip or "")),
        has_authorizer,
        acls,
        topics,
        tuple(unread),
        reassigning,
        partitions,
    )


async def read_callback_classes(admin: KafkaAdmin) -> tuple[str, ...]:
    """client.quota.callback.class of all brokers that describe themselves. Needs DescribeConfigs on the cluster; raises
    ClusterError when the brokers cannot be listed."""
    nodes = (await admin.describe_cluster()).nodes
    brokers = [(await _read_broker(admin, node.id))[0] for node in sorted(nodes)]
    return ClusterFacts(brokers=tuple(brokers)).callback_classes


# What it means when a part cannot be read.
_ADDRESS_QUOTAS: Final = Unread(
    "connection_creation_rate of addresses",
    "DescribeConfigs on the cluster",
    "whether the brokers limit the gateway's address is not known",
)
_ACLS: Final = Unread(
    "ACLs with hosts",
    "Describe on the cluster",
    "whether an ACL names addresses, which the gateway hides, is not known",
)
_PARTITIONS: Final = Unread(
    PARTITIONS_OF_TOPICS,
    "Describe on topics",
    "what a deleted or enlarged topic costs of controller_mutation_rate is not known, nor throttled replicas",
)
_REASSIGNMENTS: Final = Unread(
    REASSIGNMENTS, "Describe on the cluster", "whether replication throttles are left over is not known"
)
_TOPICS: Final = Unread(
    THROTTLED_REPLICAS,
    "Describe and DescribeConfigs on topics",
    "replication throttles that a reassignment left behind are not shown",
)


async def _or_unread(answer: Awaitable[T], unread: list[Unread], otherwise: T, part: Unread) -> T:
    try:
        return await answer
    except ClusterError as exc:
        unread.append(part._replace(error=str(exc)))
        return otherwise


async def _read_broker(admin: KafkaAdmin, broker_id: int) -> tuple[BrokerFacts, Release | None, list[Unread]]:
    """Its facts, the finalized release and what could not be read."""
    unread: list[Unread] = []
    of_versions = Unread(
        f"versions of broker {broker_id}",
        "nothing; ApiVersions is always allowed",
        "its release and its rule of windows (3.8 changed it) are not known",
    )
    versions = await _or_unread(_read_versions(admin, broker_id), unread, None, of_versions)
    of_configs = Unread(
        f"configuration of broker {broker_id}",
        "DescribeConfigs on the cluster",
        "its quota windows, callback class, thread counts and limits of connections are not known: Kafka's defaults or"
        " the settings are used",
    )
    configs = await _or_unread(_read_configs(admin, broker_id), unread, (), of_configs)
    level = _levels(versions, "finalized_features", "max_version_level").get(METADATA_VERSION)  # None with ZooKeeper
    finalized = None if level is None else release_of_level(level)
    facts = _broker_facts(broker_id, versions, configs)
    if configs and facts.quota_window is None:
        facts = replace(facts, lacks_window=True)
        means = "Kafka's default of 11 x 1 s, or the settings are used for its rates; throttle times imply no limit"
        unread.append(Unread(f"quota window of broker {broker_id}", "nothing", means, "its configuration has none"))
    if LOG_DIRS_RATE in facts.limits():
        means = f"whether {LOG_DIRS_RATE} is left over is not known"
        of_log_dirs = Unread(f"log directories of broker {broker_id}", "Describe on the cluster", means)
        moves = await _or_unread(_read_moves_log_dirs(admin, broker_id), unread, None, of_log_dirs)
        facts = replace(facts, moves_log_dirs=moves)
    return facts, finalized, unread


def _broker_facts(broker_id: int, versions: Any | None, configs: Sequence[Any]) -> BrokerFacts:
    """From ApiVersions (None: not answered) and the entries of DescribeConfigs."""
    values = {
        config.name: one_line(config.value, _MOST_VALUE_CHARS)
        for config in configs
        if config.value is not None
        and (
            config.name in BROKER_CONFIGS
            or config.name == PROTOCOL_VERSION
            # Listeners may have limits of their own: listener.name.external.max.connections.
            or (config.name.startswith("listener.name.") and config.name.endswith(CONNECTIONS))
        )
    }
    release = release_of(_levels(versions, "supported_features", "max_version"), values)
    values.pop(PROTOCOL_VERSION, None)
    apis = None if versions is None else {api.api_key for api in versions.api_keys}
    sources = {config.name: int(config.config_source) for config in configs if config.name in REPLICATION_RATES}
    return BrokerFacts(broker_id, release, values, None if apis is None else _LIST_CONFIG_RESOURCES in apis, sources)


def _levels(versions: Any | None, kind: str, level: str) -> dict[str, int]:
    """Feature -> level; ApiVersions has features from version 3 on."""
    return {feature.name: int(getattr(feature, level)) for feature in getattr(versions, kind, ())}


async def _read_versions(admin: KafkaAdmin, broker_id: int) -> Any:
    fields = {"client_software_name": "headroom", "client_software_version": "facts"}
    response = await admin.send(NegotiatedRequest(_API_VERSIONS, fields), node_id=broker_id)
    check("ApiVersions", response.error_code)
    return response


async def _read_configs(admin: KafkaAdmin, broker_id: int) -> Sequence[Any]:
    """All of the broker's configuration: limits of single listeners have names that are not known before. A broker
    describes only itself."""
    response = await admin.send(describe_configs(_BROKER, [str(broker_id)]), node_id=broker_id)
    for result in response.results:
        if result.resource_name == str(broker_id):
            check("DescribeConfigs", result.error_code, result.error_message)
            if result.configs:
                return tuple(result.configs)
    raise ClusterError(f"broker {broker_id} answered DescribeConfigs without its configuration")  # as some clouds do


async def _read_acls(admin: KafkaAdmin) -> tuple[bool, tuple[HostAcl, ...]]:
    """Whether there is an authorizer, and its ACLs with hosts."""
    fields = {
        "resource_type_filter": _ANY,
        "resource_name_filter": None,
        "pattern_type_filter": _ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    response = await admin.send(NegotiatedRequest(_DESCRIBE_ACLS, fields))
    try:
        check("DescribeAcls", response.error_code, response.error_message)
    except RefusedError as exc:
        if exc.code == _SECURITY_DISABLED:
            return False, ()
        raise
    acls = (
        HostAcl(
            _name(_PERMISSIONS, acl.permission_type),
            one_line(acl.principal),
            one_line(acl.host),
            _name(_OPERATIONS, acl.operation),
            f"{_name(_RESOURCES, resource.resource_type)} {one_line(resource.resource_name)}"
            + ("*" if resource.pattern_type == _PREFIXED else ""),
        )
        for resource in response.resources
        for acl in resource.acls
        if acl.host != "*"
    )
    return True, tuple(sorted(acls))


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else names[0]


async def _read_throttled_replicas(admin: KafkaAdmin, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Topic -> configurations of throttled replicas that are set."""
    names = list(islice((topic for topic in topics if len(topic) <= _LONGEST_TOPIC), _MOST_TOPICS))
    replicas: dict[str, dict[str, str]] = {}
    for start in range(0, len(names), _TOPICS_PER_REQUEST):
        part = names[start : start + _TOPICS_PER_REQUEST]
        response = await admin.send(describe_configs(_TOPIC, part, REPLICATION_REPLICAS))
        for result in response.results:
            if not result.error_code:
                replicas[result.resource_name] = {
                    config.name: one_line(config.value)
                    for config in result.configs
                    if config.name in REPLICATION_REPLICAS and config.value
                }
    return {topic: values for topic, values in replicas.items() if values}


async def _count_reassigning(admin: KafkaAdmin, controller_id: int) -> int:
    """The number of partitions that are being reassigned. Brokers with ZooKeeper ask to be sent to the controller."""
    request = NegotiatedRequest(_LIST_REASSIGNMENTS, {"topics": None})
    response = await admin.send(request)
    if response.error_code == NOT_CONTROLLER:
        response = await admin.send(request, node_id=controller_id)
    check("ListPartitionReassignments", response.error_code, response.error_message)
    return sum(len(topic.partitions) for topic in response.topics)


async def _read_moves_log_dirs(admin: KafkaAdmin, broker_id: int) -> bool:
    """Whether a replica is on its way to another directory."""
    response = await admin.send(NegotiatedRequest(_DESCRIBE_LOG_DIRS, {"topics": None}), node_id=broker_id)
    check("DescribeLogDirs", getattr(response, "error_code", 0))  # from version 3 on
    for result in response.results:
        check("DescribeLogDirs", result.error_code)
    return any(
        partition.is_future_key
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
    )


def partition_counts(version: int, reader: Reader) -> dict[str, int]:
    """Topic -> number of partitions, of the topics without an error; builds no entities, of which there would be a
    hundred thousand. Raises ProtocolError."""
    if version > _LAST_PLAIN:  # a broker without the preferred versions
        response: Any = decode_head(load_response_schema(METADATA, version), reader.raw(reader.remaining))[0]
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
