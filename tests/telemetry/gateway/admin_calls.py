"""Kafka's Admin for tests that compare its calls: `calls.all.deleteTopics([name])` waits for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaObject

from headroom.demo.jvm import Jvm

TIMEOUT_S = 20
FAR = 1 << 40  # an offset that py4j passes as a Long


class Calls:
    """An Admin with a topic and a consumer group of its own, filled with the data that the calls expect."""

    def __init__(self, jvm: Jvm, bootstrap: str, name: str) -> None:
        self.java, self.kafka = jvm.classes.java, jvm.classes.org.apache.kafka
        self.k = self.kafka.clients.admin
        self.jvm, self.name = jvm, name
        self.admin = jvm.admin(bootstrap)
        self.unit = self.java.util.concurrent.TimeUnit.SECONDS
        create = self.kafka.clients.admin.NewTopic(name, 2, 1)
        self.get(self.admin.createTopics([create]).all())
        self._fill(bootstrap)

    def _fill(self, bootstrap: str) -> None:
        record = self.kafka.clients.producer.ProducerRecord
        producer = self.jvm.producer(bootstrap, self.name, transactional_id=self.name)
        producer.initTransactions()
        producer.beginTransaction()
        for number in range(5):
            producer.send(record(self.name, 0, None, b"%d" % number))
        producer.commitTransaction()
        producer.close()
        offsets = {self.partition(): self.kafka.clients.consumer.OffsetAndMetadata(3)}
        self.get(self.admin.alterConsumerGroupOffsets(self.name, offsets).all())

    def get(self, future: Any) -> Any:
        return future.get(TIMEOUT_S, self.unit)

    @property
    def all(self) -> _Asked:
        return self.of("all")

    def of(self, part: str) -> _Asked:
        """`c.of("nodes").describeCluster()`: the call, and then that part of its result."""
        return _Asked(self, part)

    def partition(self, number: int = 0) -> Any:
        return self.kafka.common.TopicPartition(self.name, number)

    def resource(self, kind: str, name: str) -> Any:
        resource = self.kafka.common.config.ConfigResource
        return resource(getattr(resource.Type, kind), name)

    def before(self, offset: int) -> Any:
        """RecordsToDelete.beforeOffset, by reflection: py4j takes its namesake that is not static."""
        of = self.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        (method,) = [m for m in of.getMethods() if m.getName() == "beforeOffset" and m.getParameterCount() == 1]
        return method.invoke(None, self.java.util.ArrayList([offset]).toArray())

    def text(self, value: Any) -> str:
        """As Java prints it."""
        return str(self.java.util.Objects.toString(value)) if isinstance(value, JavaObject) else str(value)

    def close(self) -> None:
        self.admin.close()


class _Asked:
    def __init__(self, calls: Calls, part: str) -> None:
        self._calls = calls
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._calls.admin, name)
        return lambda *arguments: self._calls.get(getattr(call(*arguments), self._part)())
