"""quota_metrics/kafka/client_metrics.py reads exactly the resources that an admin created in a cluster."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest
from kio.schema.describe_configs import v4
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v0.response import ConfigResource, ListConfigResourcesResponse
from kio.static.primitive import i8, i32Timedelta

from headroom.demo.admin import Admin
from headroom.demo.broker import LocalCluster
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.errors import RefusedError
from quota_metrics.kafka.frames import NegotiatedRequest, ReadBody

NO_THROTTLE = i32Timedelta.parse(datetime.timedelta(0))
CLIENT_METRICS_CONFIG, DEFAULT_CONFIG = i8(7), i8(5)


class Cluster714(KafkaAdmin):
    """Answers as a broker does: `resources` is name -> key -> (value, source)."""

    def __init__(self, resources: dict[str, dict[str, tuple[str | None, i8]]]) -> None:
        super().__init__([("127.0.0.1", 1)])
        self.resources = resources
        self.list_code = self.describe_code = ErrorCode.none
        self.asked: list[NegotiatedRequest] = []

    async def send(
        self, request: NegotiatedRequest, *, node_id: int | None = None, read: ReadBody | None = None
    ) -> Any:
        self.asked.append(request)
        return self._list() if len(self.asked) == 1 else self._describe(request.in_version(4))

    def _list(self) -> ListConfigResourcesResponse:
        return ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE,
            error_code=self.list_code,
            config_resources=tuple(ConfigResource(resource_name=name) for name in self.resources),
        )

    def _describe(self, request: Any) -> v4.response.DescribeConfigsResponse:
        return v4.response.DescribeConfigsResponse(
            throttle_time=NO_THROTTLE,
            results=tuple(self._described(resource.resource_name) for resource in request.resources),
        )

    def _described(self, name: str) -> v4.response.DescribeConfigsResult:
        refused = self.describe_code is not ErrorCode.none
        return v4.response.DescribeConfigsResult(
            error_code=self.describe_code,
            error_message="no" if refused else None,
            resource_type=i8(16),
            resource_name=name,
            configs=() if refused else tuple(_config(key, *value) for key, value in self.resources[name].items()),
        )


def _config(key: str, value: str | None, source: i8) -> v4.response.DescribeConfigsResourceResult:
    return v4.response.DescribeConfigsResourceResult(
        name=key,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=False,
        synonyms=(),
        documentation=None,
    )


def read(cluster: Cluster714) -> dict[str, dict[str, str]]:
    return asyncio.run(read_subscriptions(cluster))


def test_only_explicitly_set_keys_are_read() -> None:
    cluster = Cluster714(
        {
            "one": {
                "metrics": ("a,b", CLIENT_METRICS_CONFIG),
                "interval.ms": ("300000", DEFAULT_CONFIG),
                "match": ("", DEFAULT_CONFIG),
            },
            "two": {"metrics": ("", CLIENT_METRICS_CONFIG), "interval.ms": ("100", CLIENT_METRICS_CONFIG)},
        }
    )
    assert read(cluster) == {"one": {"metrics": "a,b"}, "two": {"metrics": "", "interval.ms": "100"}}


def test_resource_deleted_after_listing_is_skipped() -> None:
    assert read(Cluster714({"gone": {"metrics": ("", DEFAULT_CONFIG)}})) == {}


def test_empty_listing_sends_no_describe() -> None:
    cluster = Cluster714({})
    assert read(cluster) == {}
    assert len(cluster.asked) == 1


def test_describe_request_offers_older_versions() -> None:
    cluster = Cluster714({"one": {}})
    read(cluster)
    assert list(cluster.asked[1].versions) == [4, 3, 2, 1]


@pytest.mark.parametrize("which", ["list_code", "describe_code"])
def test_error_code_raises_refused_error(which: str) -> None:
    cluster = Cluster714({"one": {"metrics": ("a", CLIENT_METRICS_CONFIG)}})
    setattr(cluster, which, ErrorCode.cluster_authorization_failed)
    with pytest.raises(RefusedError, match="31"):
        read(cluster)


@pytest.mark.kafka
@pytest.mark.java
def test_subscriptions_are_read_from_a_real_cluster(kafka: LocalCluster, kafka_admin: Admin) -> None:
    kafka_admin.set_subscription("read-me", "org.apache.kafka.producer.,métrique", 2000, "client_id=app-.*")

    async def ask() -> dict[str, dict[str, str]]:
        host, _, port = kafka.bootstrap.rpartition(":")
        admin = KafkaAdmin([(host, int(port))])
        try:
            await admin.start()
            return await read_subscriptions(admin)
        finally:
            await admin.close()

    assert asyncio.run(ask())["read-me"] == {
        "metrics": "org.apache.kafka.producer.,métrique",
        "interval.ms": "2000",
        "match": "client_id=app-.*",
    }
