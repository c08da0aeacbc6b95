"""Compares what we count of requests that change topics with Kafka's controller mutation quota (KIP-599).

Requests and responses are written by Kafka's own classes in all versions. Between them stands a controller of a few
lines, which asks ControllerMutationQuotaManager for each topic as ReplicationControlManager does. The tokens that are
left then have to be those of our bucket, which knows the two messages only.
"""

import random
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from quota_metrics.measure.topic_partitions import TopicPartitions
from quota_metrics.windows import TokenBucket
from telemetry.wire.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from telemetry.wire.mutations import accepted_changes, requested_changes


class _Api(NamedTuple):
    key: int
    name_of_key: str
    oldest: int  # that Kafka 4 still has
    strict_since: int  # KafkaApis, ControllerApis
    result: str
    results: str


_APIS: Final = {
    "CreateTopics": _Api(CREATE_TOPICS, "CREATE_TOPICS", 2, 6, "CreatableTopicResult", "topics"),
    "CreatePartitions": _Api(CREATE_PARTITIONS, "CREATE_PARTITIONS", 0, 3, "CreatePartitionsTopicResult", "results"),
    "DeleteTopics": _Api(DELETE_TOPICS, "DELETE_TOPICS", 1, 5, "DeletableTopicResult", "responses"),
}
_REQUESTS: Final = 6
_START_MS: Final = 1_700_000_000_000  # a long in Java
_TOPICS: Final = ("a", "b", "ü", "d" * 249)
_EXISTS, _MISSING, _INVALID, _THROTTLED = 36, 3, 37, 89


def run_mutations(jvm: Jvm, seed: int, cases: int) -> list[str]:
    """What differs in `cases` clients with a quota, each with some requests."""
    java, kafka = jvm.classes.java, jvm.classes.org.apache.kafka
    clock = java.util.concurrent.atomic.AtomicReference(_START_MS)
    time = java.beans.EventHandler.create(java.lang.Class.forName("org.apache.kafka.common.utils.Time"), clock, "get")
    metrics = kafka.common.metrics.Metrics(time)
    manager = kafka.server.quota.ControllerMutationQuotaManager(
        kafka.server.config.ClientQuotaManagerConfig(), metrics, time, "", java.util.Optional.empty()
    )
    differences = []
    for number in range(cases):
        case = _Case(jvm, manager, clock, random.Random(f"mutations/{seed}/{number}"), f"user-{number}")
        differences += [f"case {number}: {what}" for what in case.run()]
    manager.shutdown()
    metrics.close()
    return differences


class _Case:
    def __init__(self, jvm: Jvm, manager: Any, clock: Any, rng: random.Random, user: str) -> None:
        self.jvm, self.manager, self.clock, self.rng, self.user = jvm, manager, clock, rng, user
        self.kafka = jvm.classes.org.apache.kafka
        self.limit = rng.choice([0.5, 1.0, 5.0, 100.0])
        self.now_ms = _START_MS
        self.topics = {"a": 3} if rng.random() < 0.5 else {}
        self.ours = TokenBucket(11, 1000, self.limit)
        self.known = TopicPartitions()
        self.known.follow(self.topics)
        principal = self.kafka.common.security.auth.KafkaPrincipal("User", user)
        self.session = self.kafka.network.Session(principal, jvm.classes.java.net.InetAddress.getLoopbackAddress())
        optional = jvm.classes.java.util.Optional
        entity = self.kafka.server.quota.ClientQuotaManager.UserEntity(user)
        quota = self.kafka.common.metrics.Quota(self.limit, True)
        manager.updateQuota(optional.of(entity), optional.empty(), optional.of(quota))

    def run(self) -> list[str]:
        for _ in range(_REQUESTS):
            self.now_ms += self.rng.choice([0, 1, 900, 1000, 15_000, 100_000])
            self.clock.set(self.now_ms)
            name = self.rng.choice([*_APIS])
            version = self.rng.randrange(_APIS[name].oldest, APIS[_APIS[name].key].max_version + 1)
            self._request(name, version)
            theirs, ours = self._tokens(), self.ours.measure(self.now_ms)
            if theirs != ours or self.known.unknown:
                return [f"{name} {version}, limit {self.limit}: Kafka has {theirs} tokens, we {ours}"]
        return []

    def _request(self, name: str, version: int) -> None:
        key = getattr(self.kafka.common.protocol.ApiKeys, _APIS[name].name_of_key)
        header = self.kafka.common.requests.RequestHeader(key, version, "app", 1)
        quota = self.manager.newQuotaFor(self.session, header, _APIS[name].strict_since)
        request, response = self._message(f"{name}Request"), self._message(f"{name}Response")
        before = self.topics.copy()
        for topic in self.rng.sample(_TOPICS, self.rng.randrange(1, 4)):
            self._topic(name, version, topic, (request, response), quota)
        if name != "DeleteTopics" and self.rng.random() < 0.3:  # the controller drops the records, and not the cost
            request.setValidateOnly(True)
            self.topics = before
        api = APIS[_APIS[name].key]
        asked = requested_changes(api, version, self._bytes(request, version))
        for change in accepted_changes(api, version, self._bytes(response, version), asked):
            self.ours.record(self.known.cost([change]), self.now_ms)

    def _topic(self, name: str, version: int, topic: str, messages: tuple[Any, Any], quota: Any) -> None:
        request, response = messages
        before = self.topics.get(topic, 0)
        wanted, result = self.rng.choice([1, 3, 7, 40]), 0
        data = f"org.apache.kafka.common.message.{name}"
        if name == "DeleteTopics":
            result = 0 if before else _MISSING
            cost, after = before, 0
            if version < 6:
                request.topicNames().add(topic)
            else:
                request.topics().add(self._new(f"{data}RequestData$DeleteTopicState").setName(topic))
        elif name == "CreateTopics":
            result = _EXISTS if before else 0
            cost = after = wanted
            request.topics().add(self._created(f"{data}RequestData$", topic, wanted))
        else:
            result = _MISSING if not before else _INVALID if wanted <= before else 0
            cost, after = wanted - before, wanted
            request.topics().add(self._enlarged(f"{data}RequestData$", topic, wanted, max(cost, 1)))
        result = result or _charged(quota, cost)
        if result == 0:
            self.topics[topic] = after
        self._answer(name, response, topic, result, after)

    def _created(self, data: str, topic: str, partitions: int) -> Any:
        created = self._new(f"{data}CreatableTopic").setName(topic)
        for _ in range(self.rng.randrange(3)):
            config = self._new(f"{data}CreatableTopicConfig").setName("retention.ms")
            created.configs().add(config.setValue(self.rng.choice([None, "1"])))
        if self.rng.random() < 0.7:
            return created.setNumPartitions(partitions).setReplicationFactor(1)
        created.setNumPartitions(-1).setReplicationFactor(-1)
        for index in range(partitions):
            assignment = self._new(f"{data}CreatableReplicaAssignment").setPartitionIndex(index)
            assignment.brokerIds().add(1)
            created.assignments().add(assignment)
        return created

    def _enlarged(self, data: str, topic: str, total: int, added: int) -> Any:
        enlarged = self._new(f"{data}CreatePartitionsTopic").setName(topic).setCount(total)
        if self.rng.random() < 0.7:
            return enlarged.setAssignments(None)
        for _ in range(added):
            assignment = self._new(f"{data}CreatePartitionsAssignment")
            assignment.brokerIds().add(1)
            enlarged.assignments().add(assignment)
        return enlarged

    def _answer(self, name: str, response: Any, topic: str, result: int, partitions: int) -> None:
        kind = f"org.apache.kafka.common.message.{name}ResponseData${_APIS[name].result}"
        answer = self._new(kind).setName(topic).setErrorCode(result)
        if name == "CreateTopics" and result == 0 and self.rng.random() < 0.5:
            answer.setNumPartitions(partitions)
        if name != "DeleteTopics" or self.rng.random() < 0.5:
            answer.setErrorMessage("refused" if result else None)
        getattr(response, _APIS[name].results)().add(answer)

    def _message(self, name: str) -> Any:
        return self._new(f"org.apache.kafka.common.message.{name}Data")

    def _new(self, name: str) -> Any:
        of_class = self.jvm.classes.java.lang.Class.forName(name)
        return of_class.getDeclaredConstructor(None).newInstance(None)

    def _bytes(self, message: Any, version: int) -> bytes:
        util = self.kafka.common.protocol.MessageUtil
        return bytes(util.byteBufferToArray(util.toByteBufferAccessor(message, version).buffer()))

    def _tokens(self) -> float:
        sensors = self.manager.getOrCreateQuotaSensors(self.session, "app")
        metrics = sensors.quotaSensor().metrics()
        tokens = next(metric for metric in metrics if metric.metricName().name() == "tokens")
        return float(tokens.metricValue())


def _charged(quota: Any, partitions: int) -> int:
    """The error code with which the controller refuses; 0: it accepts."""
    try:
        quota.record(float(partitions))
    except Py4JJavaError as exc:
        if exc.java_exception.getClass().getSimpleName() != "ThrottlingQuotaExceededException":
            raise
        return _THROTTLED
    return 0
