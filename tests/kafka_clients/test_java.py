"""A real Java client against a real broker, without Headroom: the baseline for the other tests of real clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headroom.demo.admin import Admin
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from headroom.demo.service import DemoError

pytestmark = [pytest.mark.kafka, pytest.mark.java]


def test_produced_records_are_consumed(jvm: Jvm, kafka: LocalCluster, new_topic: Callable[[], str]) -> None:
    topic = new_topic()
    producer = jvm.producer(kafka.bootstrap, "java-there")
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord(topic, jvm.bytes_of(1000))
    for _ in range(10):
        producer.send(record)
    producer.close()
    consumer = jvm.consumer(kafka.bootstrap, "java-back", "java-back")
    consumer.subscribe([topic])
    seen = 0
    while seen < 10:
        seen += consumer.poll(jvm.duration(1000)).count()
    consumer.close()
    assert seen == 10


def test_admin_sets_quotas_and_subscriptions(jvm: Jvm, kafka: LocalCluster, kafka_admin: Admin) -> None:
    kafka_admin.alter_quota({"user": "ANONYMOUS", "client-id": "some-app"}, {"producer_byte_rate": 1000.0})
    kafka_admin.set_subscription("some-subscription", "org.apache.kafka.", 5000)
    admin = jvm.admin(kafka.bootstrap)
    quota = jvm.classes.org.apache.kafka.common.quota
    component = quota.ClientQuotaFilterComponent.ofEntity("client-id", "some-app")
    found = admin.describeClientQuotas(quota.ClientQuotaFilter.contains([component])).entities().get()
    names = [resource.name() for resource in admin.listClientMetricsResources().all().get()]
    admin.close()
    assert [dict(values) for values in found.values()] == [{"producer_byte_rate": 1000.0}]
    assert "some-subscription" in names


def test_refusal_of_kafka_is_a_one_line_error(kafka_admin: Admin) -> None:
    with pytest.raises(
        DemoError, match=r"cannot change the cluster's configuration: .*InvalidRequestException"
    ) as caught:
        kafka_admin.alter_quota({"client-id": "some-app"}, {"no_such_key": 1.0})
    assert "\n" not in str(caught.value)
