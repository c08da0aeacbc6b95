"""Responses of the brokers (kio's entities) -> facts. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from quota_metrics.cluster.facts import (
    BROKER_CONFIGS,
    CONNECTIONS,
    AddressQuota,
    BrokerFacts,
    HostAcl,
)
from quota_metrics.cluster.releases import METADATA_VERSION, PROTOCOL_VERSION, Release, release_of, release_of_level
from quota_metrics.cluster.replication import REPLICATION_RATES, REPLICATION_REPLICAS
from quota_metrics.config.entities import Rules, address_rates
from quota_metrics.kafka.errors import one_line

LIST_CONFIG_RESOURCES: Final = 74  # CLIENT_METRICS came with it (ListClientMetricsResources of 3.7)

_MOST_VALUE_CHARS: Final = 32_767  # Kafka's longest string: max.connections.per.ip.overrides is applied, so never cut
_ANY_HOST: Final = "*"

# org.apache.kafka.common.acl.{AclOperation, AclPermissionType} and resource.{ResourceType, PatternType}, by code
_OPERATIONS: Final = (
    "UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
_PERMISSIONS: Final = ("UNKNOWN", "ANY", "DENY", "ALLOW")
_RESOURCES: Final = ("UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
_PREFIXED: Final = 4


def broker_facts(broker_id: int, versions: Any | None, configs: Sequence[Any]) -> BrokerFacts:
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
    supported = _levels(versions, "supported_features", "max_version")
    release = release_of(supported, values)
    values.pop(PROTOCOL_VERSION, None)
    apis = None if versions is None else {api.api_key for api in versions.api_keys}
    sources = {config.name: int(config.config_source) for config in configs if config.name in REPLICATION_RATES}
    return BrokerFacts(broker_id, release, values, None if apis is None else LIST_CONFIG_RESOURCES in apis, sources)


def moves_log_dirs(results: Iterable[Any]) -> bool:
    """Whether a replica is on its way to another directory. `results`: of a DescribeLogDirs response."""
    return any(
        partition.is_future_key for result in results for topic in result.topics for partition in topic.partitions
    )


def finalized_release(versions: Any) -> Release | None:
    """The cluster's metadata.version; None with ZooKeeper."""
    level = _levels(versions, "finalized_features", "max_version_level").get(METADATA_VERSION)
    return None if level is None else release_of_level(level)


def host_acls(resources: Iterable[Any]) -> tuple[HostAcl, ...]:
    """The ACLs that name a host, sorted. `resources`: of a DescribeAcls response."""
    acls = (
        HostAcl(
            _name(_PERMISSIONS, acl.permission_type),
            one_line(acl.principal),
            one_line(acl.host),
            _name(_OPERATIONS, acl.operation),
            f"{_name(_RESOURCES, resource.resource_type)} {one_line(resource.resource_name)}"
            + ("*" if resource.pattern_type == _PREFIXED else ""),
        )
        for resource in resources
        for acl in resource.acls
        if acl.host != _ANY_HOST
    )
    return tuple(sorted(acls))


def address_quotas(rules: Rules) -> tuple[AddressQuota, ...]:
    """connection_creation_rate of each address, the default first."""
    quotas = (AddressQuota(ip, rate) for ip, rate in address_rates(rules).items())
    return tuple(sorted(quotas, key=lambda quota: (quota.ip is not None, quota.ip or "")))


def throttled_replicas(results: Iterable[Any]) -> Mapping[str, Mapping[str, str]]:
    """Topic -> configurations of throttled replicas that are set. `results`: of DescribeConfigs of topics."""
    replicas = {
        result.resource_name: {
            config.name: one_line(config.value)
            for config in result.configs
            if config.name in REPLICATION_REPLICAS and config.value
        }
        for result in results
        if not result.error_code
    }
    return {topic: values for topic, values in replicas.items() if values}


def _levels(versions: Any | None, kind: str, level: str) -> dict[str, int]:
    """Feature -> level; ApiVersions has features from version 3 on."""
    return {feature.name: int(getattr(feature, level)) for feature in getattr(versions, kind, ())}


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else names[0]
