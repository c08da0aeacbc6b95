"""A broker's capacity of request time by its configuration: percent, 100 per thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.static.primitive import i8

from quota_metrics.kafka.errors import check

BROKER = i8(4)  # ConfigResource.Type
THREADS = ("num.io.threads", "num.network.threads")


async def read_thread_capacity(send: Callable[..., Awaitable[Any]], broker_ids: Iterable[int]) -> dict[int, float]:
    """(num.io.threads + num.network.threads) * 100 by broker, as Kafka's design notes count. Raises ClusterError.

    A broker describes only itself, so every broker is queried (KafkaAdmin.send).
    """
    capacity = {}
    for broker_id in broker_ids:
        resource = DescribeConfigsResource(
            resource_type=BROKER, resource_name=str(broker_id), configuration_keys=THREADS
        )
        response = await send(DescribeConfigsRequest(resources=(resource,)), node_id=broker_id)
        for result in response.results:
            check("DescribeConfigs", result.error_code, result.error_message)
            values = [int(config.value) for config in result.configs if config.name in THREADS and config.value]
            if len(values) == len(THREADS):
                capacity[broker_id] = sum(values) * 100.0
    return capacity
