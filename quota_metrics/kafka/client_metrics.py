"""Reads and alters the CLIENT_METRICS resources of a cluster, where Kafka's tools store subscriptions (KIP-714).

A broker stores them even if it has no telemetry plug-in and therefore does not advertise the telemetry APIs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kio.schema.describe_configs import v1, v4
from kio.schema.incremental_alter_configs import v0 as alter_v0
from kio.schema.incremental_alter_configs import v1 as alter_v1
from kio.schema.list_config_resources.v0.request import ListConfigResourcesRequest
from kio.static.primitive import i8
from kio.static.protocol import RequestPayload

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import check

_CLIENT_METRICS = i8(16)  # ConfigResource.Type.CLIENT_METRICS
_CLIENT_METRICS_CONFIG: Final = 7  # ConfigSource of a key that is set; the others are defaults
_SET, _DELETE = i8(0), i8(1)  # AlterConfigOp.OpType


async def subscription_names(admin: KafkaAdmin) -> list[str]:
    """The names of all resources, sorted. Raises ClusterError."""
    listed = await admin.send(ListConfigResourcesRequest())
    check("ListConfigResources", listed.error_code)
    return sorted(resource.resource_name for resource in listed.config_resources)


async def read_subscriptions(admin: KafkaAdmin) -> dict[str, dict[str, str]]:
    """Name -> set keys and values of each resource. Raises ClusterError if any resource fails."""
    names = await subscription_names(admin)
    if not names:
        return {}
    described = await admin.send(_describe(v4.request, names), _describe(v1.request, names))
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
    versions = (alter_v1.request, alter_v0.request)
    response = await admin.send(*(_alter(version, name, keys, validate_only=validate_only) for version in versions))
    for result in response.responses:
        check(f"the change of client metrics {name!r}", result.error_code, result.error_message)


def _alter(version: Any, name: str, keys: Mapping[str, str | None], *, validate_only: bool) -> RequestPayload:
    request: RequestPayload = version.IncrementalAlterConfigsRequest(
        resources=(
            version.AlterConfigsResource(
                resource_type=_CLIENT_METRICS,
                resource_name=name,
                configs=tuple(
                    version.AlterableConfig(
                        name=key, config_operation=_DELETE if value is None else _SET, value=value or ""
                    )
                    for key, value in keys.items()
                ),
            ),
        ),
        validate_only=validate_only,
    )
    return request


def _describe(version: Any, names: Iterable[str]) -> RequestPayload:
    request: RequestPayload = version.DescribeConfigsRequest(
        resources=tuple(
            version.DescribeConfigsResource(resource_type=_CLIENT_METRICS, resource_name=name, configuration_keys=None)
            for name in names
        )
    )
    return request
