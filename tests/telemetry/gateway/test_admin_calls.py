"""Every call of Kafka's Admin, on a broker and through the gateway in front of it: the same results, the same errors.

Each run uses separate names; names, addresses and values that differ between any two runs are masked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from tests.kit.serving import eventually
from tests.telemetry.conftest import RunningGateway

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


pytestmark = [pytest.mark.kafka, pytest.mark.java]

_VARIES = (
    (re.compile(r"(localhost|127\.0\.0\.1):\d+"), "HOST:PORT"),
    (re.compile(r"(?<=port=)\d+"), "PORT"),
    (re.compile(r"@[0-9a-f]{4,8}\b"), "@HASH"),
    (re.compile(r"\b[A-Za-z0-9_-]{22}\b"), "UUID"),
    (re.compile(r"\b1\d{12}\b"), "TIMESTAMP"),
    (re.compile(r"(?i)((size|bytes|producerid|epoch)[a-z]*[=:] ?)(Optional\w*\[)?-?\d+\]?"), r"\1N"),
)


def configs(c: Calls, kind: str, name: str) -> Any:
    """Explicitly set values only."""
    (described,) = c.get(c.admin.describeConfigs([c.resource(kind, name)]).all()).values()
    return sorted(f"{entry.name()}={entry.value()}" for entry in described.entries().toArray() if not entry.isDefault())


def set_config(c: Calls, kind: str, name: str, key: str, value: str) -> Any:
    admin = c.kafka.clients.admin
    operation = admin.AlterConfigOp(admin.ConfigEntry(key, value), admin.AlterConfigOp.OpType.SET)
    return c.get(c.admin.incrementalAlterConfigs({c.resource(kind, name): [operation]}).all())


def acl(c: Calls) -> Any:
    acls, resource = c.kafka.common.acl, c.kafka.common.resource
    pattern = resource.ResourcePattern(resource.ResourceType.TOPIC, c.name, resource.PatternType.LITERAL)
    operation, permission = acls.AclOperation.READ, acls.AclPermissionType.ALLOW
    return acls.AclBinding(pattern, acls.AccessControlEntry("User:alice", "*", operation, permission))


def quota(c: Calls, value: float | None) -> Any:
    quotas = c.kafka.common.quota
    entity = quotas.ClientQuotaEntity(c.java.util.HashMap({"client-id": c.name}))
    operation = quotas.ClientQuotaAlteration.Op("producer_byte_rate", value)
    return c.get(c.admin.alterClientQuotas([quotas.ClientQuotaAlteration(entity, [operation])]).all())


def quotas_of_client(c: Calls) -> Any:
    """Waits until the broker has applied what the controller acknowledged."""
    quotas = c.kafka.common.quota
    of_client = quotas.ClientQuotaFilter.containsOnly([quotas.ClientQuotaFilterComponent.ofEntity("client-id", c.name)])
    return eventually(lambda: c.of("entities").describeClientQuotas(of_client), lambda entities: len(entities) > 0)


def scram(c: Calls) -> Any:
    admin = c.kafka.clients.admin
    info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = admin.UserScramCredentialUpsertion(c.name, info, "secret")
    altered = c.get(c.admin.alterUserScramCredentials([upsertion]).all())
    eventually(lambda: c.name in c.get(c.admin.describeUserScramCredentials().users()), bool)
    return altered


def abort(c: Calls) -> Any:
    producers = c.get(c.admin.describeProducers([c.partition()]).all())[c.partition()].activeProducers()
    state = producers.get(0)
    spec = c.k.AbortTransactionSpec(c.partition(), state.producerId(), state.producerEpoch(), 0)
    return c.get(c.admin.abortTransaction(spec).all())


def features(c: Calls) -> Any:
    """In order; Java's has no fixed one, and the epoch counts changes of any feature."""
    metadata = c.get(c.admin.describeFeatures().featureMetadata())
    of = (metadata.finalizedFeatures(), metadata.supportedFeatures())
    return [sorted(f"{name} {c.text(levels)}" for name, levels in versions.items()) for versions in of]


# What returns the value to compare. The order matters: each call sees the changes of the calls before it.
CALLS: dict[str, Callable[[Calls], Any]] = {
    "createTopics again": lambda c: c.all.createTopics([c.k.NewTopic(c.name, 1, 1)]),
    "listTopics": lambda c: c.name in c.of("names").listTopics(),
    "describeTopics": lambda c: c.of("allTopicNames").describeTopics([c.name]),
    "describeTopics none": lambda c: c.of("allTopicNames").describeTopics([c.name + "-none"]),
    "describeCluster": lambda c: (c.of("nodes").describeCluster().size(), c.of("clusterId").describeCluster()),
    "createPartitions": lambda c: c.all.createPartitions({c.name: c.k.NewPartitions.increaseTo(3)}),
    "createPartitions fewer": lambda c: c.all.createPartitions({c.name: c.k.NewPartitions.increaseTo(1)}),
    "incrementalAlterConfigs": lambda c: set_config(c, "TOPIC", c.name, "retention.ms", "100000"),
    "incrementalAlterConfigs bad": lambda c: set_config(c, "TOPIC", c.name, "retention.ms", "soon"),
    "incrementalAlterConfigs group": lambda c: set_config(c, "GROUP", c.name, "consumer.session.timeout.ms", "50000"),
    "describeConfigs": lambda c: eventually(lambda: configs(c, "TOPIC", c.name), bool),
    "describeConfigs group": lambda c: eventually(lambda: configs(c, "GROUP", c.name), bool),
    "describeConfigs broker": lambda c: len(configs(c, "BROKER", "1")) > 5,
    "listConfigResources": lambda c: c.all.listConfigResources().size() > 0,
    "listClientMetricsResources": lambda c: c.all.listClientMetricsResources() is not None,
    "listOffsets latest": lambda c: c.all.listOffsets({c.partition(): c.k.OffsetSpec.latest()}),
    "listOffsets earliest": lambda c: c.all.listOffsets({c.partition(): c.k.OffsetSpec.earliest()}),
    "deleteRecords": lambda c: c.all.deleteRecords({c.partition(): c.before(2)}),
    "deleteRecords too many": lambda c: c.all.deleteRecords({c.partition(): c.before(99)}),
    "describeLogDirs": lambda c: len(c.of("allDescriptions").describeLogDirs([1])),
    "describeReplicaLogDirs": lambda c: len(
        c.all.describeReplicaLogDirs([c.kafka.common.TopicPartitionReplica(c.name, 0, 1)])
    ),
    "alterReplicaLogDirs": lambda c: c.all.alterReplicaLogDirs(
        {c.kafka.common.TopicPartitionReplica(c.name, 0, 1): "/nowhere"}
    ),
    "listGroups": lambda c: c.name in [group.groupId() for group in c.all.listGroups()],
    "listConsumerGroups": lambda c: c.name in [group.groupId() for group in c.all.listConsumerGroups()],
    "describeConsumerGroups": lambda c: c.all.describeConsumerGroups([c.name]),
    "describeClassicGroups": lambda c: c.all.describeClassicGroups([c.name]),
    "describeShareGroups": lambda c: c.all.describeShareGroups([c.name + "-share"]),
    "describeStreamsGroups": lambda c: c.all.describeStreamsGroups([c.name + "-streams"]),
    "listConsumerGroupOffsets": lambda c: c.of("partitionsToOffsetAndMetadata").listConsumerGroupOffsets(c.name),
    "listShareGroupOffsets": lambda c: c.all.listShareGroupOffsets(
        {c.name + "-share": c.k.ListShareGroupOffsetsSpec()}
    ),
    "alterShareGroupOffsets": lambda c: c.all.alterShareGroupOffsets(c.name + "-share", {c.partition(): FAR}),
    "deleteShareGroupOffsets": lambda c: c.all.deleteShareGroupOffsets(c.name + "-none", {c.name}),
    "deleteShareGroups": lambda c: c.all.deleteShareGroups([c.name + "-none"]),
    "alterStreamsGroupOffsets": lambda c: c.all.alterStreamsGroupOffsets(
        c.name + "-streams", {c.partition(): c.kafka.clients.consumer.OffsetAndMetadata(3)}
    ),
    "listStreamsGroupOffsets": lambda c: c.all.listStreamsGroupOffsets(
        {c.name + "-streams": c.k.ListStreamsGroupOffsetsSpec()}
    ),
    "deleteStreamsGroupOffsets": lambda c: c.all.deleteStreamsGroupOffsets(c.name + "-streams", {c.partition()}),
    "deleteStreamsGroups": lambda c: c.all.deleteStreamsGroups([c.name + "-streams"]),
    "removeMembersFromConsumerGroup": lambda c: c.all.removeMembersFromConsumerGroup(
        c.name, c.k.RemoveMembersFromConsumerGroupOptions([c.k.MemberToRemove("nobody")])
    ),
    "deleteConsumerGroupOffsets": lambda c: c.all.deleteConsumerGroupOffsets(c.name, {c.partition()}),
    "deleteConsumerGroups": lambda c: c.all.deleteConsumerGroups([c.name]),
    "deleteConsumerGroups none": lambda c: c.all.deleteConsumerGroups([c.name + "-none"]),
    "electLeaders": lambda c: c.all.electLeaders(c.kafka.common.ElectionType.PREFERRED, {c.partition()}),
    "listPartitionReassignments": lambda c: c.of("reassignments").listPartitionReassignments().size(),
    "alterPartitionReassignments": lambda c: c.all.alterPartitionReassignments(
        {c.partition(): c.java.util.Optional.of(c.k.NewPartitionReassignment([77]))}
    ),
    "describeAcls": lambda c: c.of("values").describeAcls(c.kafka.common.acl.AclBindingFilter.ANY),
    "createAcls": lambda c: c.all.createAcls([acl(c)]),
    "deleteAcls": lambda c: c.all.deleteAcls([acl(c).toFilter()]),
    "alterClientQuotas": lambda c: quota(c, 1000.0),
    "describeClientQuotas": quotas_of_client,
    "alterClientQuotas remove": lambda c: quota(c, None),
    "alterUserScramCredentials": scram,
    "describeUserScramCredentials": lambda c: c.all.describeUserScramCredentials([c.name]),
    "createDelegationToken": lambda c: c.of("delegationToken").createDelegationToken(),
    "renewDelegationToken": lambda c: c.of("expiryTimestamp").renewDelegationToken(b"none"),
    "expireDelegationToken": lambda c: c.of("expiryTimestamp").expireDelegationToken(b"none"),
    "describeDelegationToken": lambda c: c.of("delegationTokens").describeDelegationToken(),
    "describeFeatures": features,
    "updateFeatures": lambda c: c.all.updateFeatures(
        {"kraft.version": c.k.FeatureUpdate(99, c.k.FeatureUpdate.UpgradeType.UPGRADE)}, c.k.UpdateFeaturesOptions()
    ),
    "describeMetadataQuorum": lambda c: c.of("quorumInfo").describeMetadataQuorum().leaderId(),
    "addRaftVoter": lambda c: c.all.addRaftVoter(77, c.kafka.common.Uuid.ONE_UUID, c.java.util.HashSet()),
    "removeRaftVoter": lambda c: c.all.removeRaftVoter(77, c.kafka.common.Uuid.ONE_UUID),
    "unregisterBroker": lambda c: c.all.unregisterBroker(77),
    "describeProducers": lambda c: c.all.describeProducers([c.partition()]),
    "listTransactions": lambda c: c.name in [listed.transactionalId() for listed in c.all.listTransactions()],
    "describeTransactions": lambda c: c.all.describeTransactions([c.name]),
    "fenceProducers": lambda c: c.all.fenceProducers([c.name]),
    "abortTransaction": abort,
    "forceTerminateTransaction": lambda c: c.of("result").forceTerminateTransaction(c.name),
    "deleteTopics": lambda c: c.all.deleteTopics([c.name]),
    "deleteTopics none": lambda c: c.all.deleteTopics([c.name + "-none"]),
}


def outcome(ask: Callable[[Calls], Any], calls: Calls) -> str:
    """The returned value, or Java's exception and its cause."""
    try:
        text = calls.text(ask(calls))
    except Py4JJavaError as exc:
        cause = exc.java_exception.getCause() or exc.java_exception
        text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    text = text.replace(calls.name, "NAME")
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return text


@pytest.fixture
def both(jvm: Jvm, kafka: LocalCluster, gateway: RunningGateway) -> Iterator[tuple[Calls, Calls]]:
    direct, through = Calls(jvm, kafka.bootstrap, "calls-one"), Calls(jvm, gateway.bootstrap, "calls-two")
    yield direct, through
    direct.close()
    through.close()


def test_every_admin_call_matches_the_broker(both: tuple[Calls, Calls]) -> None:
    direct, through = both
    expected = {name: outcome(ask, direct) for name, ask in CALLS.items()}
    outcomes = {name: outcome(ask, through) for name, ask in CALLS.items()}
    assert outcomes == expected
    assert not [text for text in expected.values() if "TimeoutException" in text or "Py4J" in text], expected


def test_every_method_of_admin_is_covered(jvm: Jvm) -> None:
    admin = jvm.classes.java.lang.Class.forName("org.apache.kafka.clients.admin.Admin")
    methods = {method.getName() for method in admin.getMethods()}
    # Not requests of an administrator.
    methods -= {"create", "close", "metrics", "clientInstanceId"}
    methods -= {"registerMetricForSubscription", "unregisterMetricFromSubscription"}
    asked = {name.partition(" ")[0] for name in CALLS} | {"alterConsumerGroupOffsets"}
    assert not methods - asked
