"""Reads and alters the CLIENT_METRICS resources of a cluster, where Kafka's tools store subscriptions (KIP-714).

A broker stores them even if it has no telemetry plug-in and therefore does not advertise the telemetry APIs.
"""

from collections.abc import Mapping
from typing import Final

from quota_metrics.kafka.admin import KafkaAdmin, describe_configs
from quota_metrics.kafka.errors import check
from quota_metrics.kafka.frames import NegotiatedRequest

_LIST_CONFIG_RESOURCES: Final = 74
_INCREMENTAL_ALTER_CONFIGS: Final = 44
_CLIENT_METRICS: Final = 16  # ConfigResource.Type.CLIENT_METRICS
_CLIENT_METRICS_CONFIG: Final = 7  # ConfigSource of a key that is set; the others are defaults
_SET, _DELETE = 0, 1  # AlterConfigOp.OpType


async def subscription_names(admin: KafkaAdmin) -> list[str]:
    """The names of all resources, sorted. Raises ClusterError."""
    # Version 0 lists nothing else (ListClientMetricsResources of 3.7).
    listed = await admin.send(NegotiatedRequest(_LIST_CONFIG_RESOURCES, {"resource_types": (_CLIENT_METRICS,)}))
    check("ListConfigResources", listed.error_code)
    return sorted(resource.resource_name for resource in listed.config_resources)


async def read_subscriptions(admin: KafkaAdmin) -> dict[str, dict[str, str]]:
    """Name -> set keys and values of each resource. Raises ClusterError if any resource fails."""
    names = await subscription_names(admin)
    if not names:
        return {}
    described = await admin.send(describe_configs(_CLIENT_METRICS, names))
    resources = {}
    for result in described.results:
        check(f"DescribeConfigs of client metrics {result.resource_name!r}", result.error_code, result.error_message)
        values = {
            config.name: config.value
            for config in result.configs
            if config.config_source == _CLIENT_METRICS_CONFIG and config.value is not None
        }
        if values:  # otherwise it was deleted after the listing
            resources[result.resource_name] = values
    return resources


async def alter_subscription(
    admin: KafkaAdmin, name: str, keys: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Sets keys of one resource; None deletes a key. `validate_only`: the cluster checks the change and makes none.
    Raises ClusterError."""
    configs = [
        {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value or ""}
        for key, value in keys.items()
    ]
    resource = {"resource_type": _CLIENT_METRICS, "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": validate_only}
    response = await admin.send(NegotiatedRequest(_INCREMENTAL_ALTER_CONFIGS, fields))
    for result in response.responses:
        check(f"the change of client metrics {name!r}", result.error_code, result.error_message)
