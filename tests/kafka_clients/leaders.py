"""Leaders of partitions: who they are, a change, and what a broker tells that leads no longer."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from confluent_kafka import Producer
from kio.schema.fetch.v18 import request as fetch
from kio.static.primitive import i32, i32Timedelta, i64

from headroom.demo.jvm import Jvm
from headroom.demo.serving import Serving
from telemetry.wire.apis import FETCH, METADATA
from tests.kafka_clients.conftest import PATIENCE_S
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import eventually

PARTITIONS = 3


def leaders(bootstrap: str, topic: str) -> list[int]:
    """The leader of each partition, or -1."""
    metadata = Producer({"bootstrap.servers": bootstrap}).list_topics(topic, PATIENCE_S)
    return [metadata.topics[topic].partitions[index].leader for index in range(PARTITIONS)]


def wait_for_topic(serving: Serving, topic: str) -> None:
    """Until each broker knows the leader of each partition: brokers apply the controller's decision one by one."""
    for broker in Producer({"bootstrap.servers": serving.kafka}).list_topics(timeout=PATIENCE_S).brokers.values():
        eventually(partial(_leads_all, f"{broker.host}:{broker.port}", topic), bool, PATIENCE_S)


def _leads_all(address: str, topic: str) -> bool:
    partitions = _metadata(address, topic).topics[0].partitions
    return len(partitions) == PARTITIONS and all(partition.leader_id >= 0 for partition in partitions)


def _metadata(address: str, topic: str) -> Any:
    """A MetadataResponse: what the broker behind this address knows of the topic."""
    asked = entity_of_fields(message_type("metadata", 12, "request"), {"topics": [{"name": topic}]})
    with RawConnection(address) as connection:
        return decode(message_type("metadata", 12, "response"), connection.ask(METADATA, 12, encode(asked)))


def moved(jvm: Jvm, serving: Serving, topic: str) -> int:
    """Moves the first partition to one other broker, and returns the id of the one that led it. A broker that kept a
    replica would still answer consumers (KIP-392)."""
    kafka, util = jvm.classes.org.apache.kafka, jvm.classes.java.util
    before = leaders(serving.kafka, topic)[0]
    replicas = util.ArrayList()
    replicas.add(before % 3 + 1)
    order = util.Optional.of(kafka.clients.admin.NewPartitionReassignment(replicas))
    admin = jvm.admin(serving.kafka)
    admin.alterPartitionReassignments({kafka.common.TopicPartition(topic, 0): order}).all().get()
    eventually(lambda: len(admin.listPartitionReassignments().reassignments().get()), lambda count: not count)
    admin.close()
    eventually(lambda: leaders(serving.kafka, topic)[0], lambda leader: leader not in (before, -1))
    return before


def fetched(serving: Serving, address: tuple[str, int], topic: str) -> bytes:
    """The response, version 18, to a Fetch of the topic's first partition."""
    metadata = _metadata(serving.kafka, topic)
    partition = fetch.FetchPartition(partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(1000))
    request = fetch.FetchRequest(
        max_wait=i32Timedelta.parse(timedelta()),
        min_bytes=i32(0),
        topics=(fetch.FetchTopic(topic_id=metadata.topics[0].topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    with RawConnection("{}:{}".format(*address)) as connection:
        return connection.ask(FETCH, 18, encode(request))
