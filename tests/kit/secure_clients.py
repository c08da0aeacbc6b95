"""Three client families that send and receive records of a topic as an authenticated user.

`produce` returns when all records are acknowledged and `until` holds, for which it waits a minute and a half; `consume`
returns all of the topic that is committed. `transact` sends values in a transaction that is committed, and others in
one that is aborted.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from headroom.demo.jvm import Jvm
from quota_metrics.kafka.oauthbearer import unsecured
from tests.kit.kafka.records import consumed_by_java, consumed_by_librdkafka, consumed_by_python, produced_by_java
from tests.kit.secure_cluster import login, password

PATIENCE_S = 90.0
Condition = Callable[[], bool]


class JavaClient:
    def __init__(self, jvm: Jvm, bootstrap: str, client_id: str, properties: dict[str, str]) -> None:
        self._jvm = jvm
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._config = {name.replace(".", "_"): value for name, value in properties.items()}

    def produce(self, topic: str, values: Iterable[bytes], until: Condition = lambda: True) -> None:
        producer = self._jvm.producer(self._bootstrap, self._client_id, max_block_ms="60000", **self._config)
        try:
            produced_by_java(self._jvm, producer, topic, values)
            deadline = time.monotonic() + PATIENCE_S
            while not until() and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            producer.close()

    def transact(self, topic: str, committed: Iterable[bytes], aborted: Iterable[bytes]) -> None:
        config = self._config | {"transactional_id": topic, "max_block_ms": "60000"}
        producer = self._jvm.producer(self._bootstrap, self._client_id, **config)
        producer.initTransactions()
        for values, end in ((committed, producer.commitTransaction), (aborted, producer.abortTransaction)):
            producer.beginTransaction()
            produced_by_java(self._jvm, producer, topic, values)
            end()
        producer.close()

    def consume(self, topic: str, count: int) -> list[bytes]:
        config = self._config | {"isolation_level": "read_committed"}
        consumer = self._jvm.consumer(self._bootstrap, self._client_id, f"{self._client_id}-{topic}", **config)
        values = consumed_by_java(self._jvm, consumer, topic, count)
        consumer.close()
        return values


class LibrdkafkaClient:
    def __init__(self, bootstrap: str, client_id: str, config: dict[str, Any]) -> None:
        self._client_id = client_id
        self._config = {"bootstrap.servers": bootstrap, "client.id": client_id, **config}

    def produce(self, topic: str, values: Iterable[bytes], until: Condition = lambda: True) -> None:
        failed: list[KafkaError] = []
        producer = Producer({"message.timeout.ms": 60_000, **self._config})
        for value in values:
            producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(PATIENCE_S) == 0
        assert not failed, failed
        deadline = time.monotonic() + PATIENCE_S
        while not until() and time.monotonic() < deadline:
            producer.poll(0.1)

    def transact(self, topic: str, committed: Iterable[bytes], aborted: Iterable[bytes]) -> None:
        producer = Producer({**self._config, "transactional.id": topic})
        producer.init_transactions(PATIENCE_S)
        for values, end in ((committed, producer.commit_transaction), (aborted, producer.abort_transaction)):
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value)
            assert producer.flush(PATIENCE_S) == 0
            end(PATIENCE_S)

    def consume(self, topic: str, count: int) -> list[bytes]:
        consumer = Consumer(self._config | {"group.id": f"{self._client_id}-{topic}"})
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        values = consumed_by_librdkafka(consumer, (), count)
        consumer.close()
        return values


class KafkaPythonClient:
    """It pushes no telemetry."""

    def __init__(self, bootstrap: str, client_id: str, config: dict[str, Any]) -> None:
        self._config = {"bootstrap_servers": bootstrap.split(","), "client_id": client_id, **config}

    def produce(self, topic: str, values: Iterable[bytes], until: Condition = lambda: True) -> None:
        producer = KafkaProducer(**self._config)
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(PATIENCE_S)
        producer.close()

    def transact(self, topic: str, committed: Iterable[bytes], aborted: Iterable[bytes]) -> None:
        producer = KafkaProducer(transactional_id=topic, **self._config)
        producer.init_transactions()
        for values, end in ((committed, producer.commit_transaction), (aborted, producer.abort_transaction)):
            producer.begin_transaction()
            for sent in [producer.send(topic, value) for value in values]:
                sent.get(PATIENCE_S)
            end()
        producer.close()

    def consume(self, topic: str, count: int) -> list[bytes]:
        return consumed_by_python(topic, count, isolation_level="read_committed", **self._config)


class _UnsecuredToken(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    def __init__(self, user: str) -> None:
        self._user = user

    def token(self) -> str:
        return unsecured({"sub": self._user})


def client(
    family: str, jvm: Jvm, bootstrap: str, protocol: str, mechanism: str, user: str, ca: Path, secret: str | None = None
) -> JavaClient | LibrdkafkaClient | KafkaPythonClient:
    """`family`: java, librdkafka or kafka-python. `mechanism`: '' where the protocol has no SASL."""
    client_id = f"{family}-{protocol}-{mechanism or 'none'}".lower()
    tls, secret = protocol.endswith("SSL"), secret or password(user)
    if family == "java":
        java = {"security.protocol": protocol}
        if tls:
            java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}
        if mechanism:
            java |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login(mechanism, user, secret)}
        return JavaClient(jvm, bootstrap, client_id, java)
    if family == "librdkafka":
        config: dict[str, Any] = {"security.protocol": protocol.lower()}
        if tls:
            config["ssl.ca.location"] = str(ca)
        if mechanism == "OAUTHBEARER":
            config |= {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": f"principal={user}"}
        elif mechanism:
            config |= {"sasl.username": user, "sasl.password": secret}
        if mechanism:
            config["sasl.mechanism"] = mechanism
        return LibrdkafkaClient(bootstrap, client_id, config)
    other: dict[str, Any] = {"security_protocol": protocol}
    if tls:
        other["ssl_cafile"] = str(ca)
    if mechanism == "OAUTHBEARER":
        other["sasl_oauth_token_provider"] = _UnsecuredToken(user)
    elif mechanism:
        other |= {"sasl_plain_username": user, "sasl_plain_password": secret}
    if mechanism:
        other["sasl_mechanism"] = mechanism
    return KafkaPythonClient(bootstrap, client_id, other)
