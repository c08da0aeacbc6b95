"""`headroom serve` in front of a secured cluster: flags, tables that name the user, and no password anywhere."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from tests.kit.secure_clients import JavaClient, LibrdkafkaClient
from tests.kit.secure_cluster import SecureCluster, login
from tests.kit.secured_serve import librdkafka, rows, serving
from tests.kit.serving import Served, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory, secure_cluster: SecureCluster) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), secure_cluster) as served:
        yield served


@pytest.fixture
def two_processes(tmp_path: Path, secure_cluster: SecureCluster) -> Iterator[Served]:
    with serving(tmp_path, secure_cluster, "--processes", "2") as served:
        yield served


@pytest.mark.parametrize("processes", [pytest.param("one_process", marks=pytest.mark.release), "two_processes"])
def test_tables_contain_the_user_and_errors_no_password(
    processes: str,
    request: pytest.FixtureRequest,
    secure_cluster: SecureCluster,
    new_secure_topic: Callable[[str], str],
) -> None:
    topic = new_secure_topic(f"served-{processes}")
    served = request.getfixturevalue(processes)
    client = LibrdkafkaClient(served.kafka, "served", librdkafka(secure_cluster, "alice"))
    named = {
        table: f"SELECT DISTINCT {column} FROM headroom.{table} WHERE client_id = 'served'"
        for table, column in (("quota_usage", "user"), ("client_metrics", "principal"))
    }
    client.produce(topic, [b"value"] * 500, lambda: all(rows(served, query) for query in named.values()))

    with pytest.raises(AssertionError) as refused:
        wrong = librdkafka(secure_cluster, "alice", "wrong-secret")
        LibrdkafkaClient(served.kafka, "wrong", wrong | {"message.timeout.ms": "3000"}).produce(topic, [b"x"])
    assert "-secret" not in str(refused.value)
    for table, query in named.items():
        assert rows(served, query) == ["alice"]
        assert rows(served, f"SELECT count() FROM headroom.{table} WHERE client_id = 'wrong'") == ["0"]


def test_a_delegation_token_is_recorded_as_its_owner(
    one_process: Served, jvm: Jvm, secure_cluster: SecureCluster, new_secure_topic: Callable[[str], str]
) -> None:
    """Until the owner is known, usage and telemetry have a name that no user has."""
    topic = new_secure_topic("by-token")
    properties = token_of(jvm, secure_cluster, "bob")
    client = JavaClient(jvm, one_process.kafka, "by-token", properties)

    def users(table: str, column: str) -> set[str]:
        return set(rows(one_process, f"SELECT DISTINCT {column} FROM headroom.{table} WHERE client_id = 'by-token'"))

    def is_bobs(table: str, column: str) -> bool:
        return "bob" in users(table, column)

    for table, column in (("quota_usage", "user"), ("client_metrics", "principal")):
        client.produce(topic, [b"value"] * 10, partial(is_bobs, table, column))
        assert "bob" in users(table, column)
        assert users(table, column) <= {"bob", "<unknown SCRAM-SHA-512 principal>"}
    assert properties["sasl.jaas.config"].split('"')[3] not in one_process.log.read_text()


def token_of(jvm: Jvm, cluster: SecureCluster, user: str) -> dict[str, str]:
    """Client properties with a delegation token of the user that each broker accepts.

    A broker refuses a token until the cluster's metadata has brought it, and Java's producer does not return for
    delivery.timeout.ms (2 minutes) when one broker refuses it and another one does not.
    """
    properties = cluster.client_properties("SASL_SSL", "SCRAM-SHA-512", user)

    def admin(bootstrap: str) -> Any:
        timeouts = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}
        return jvm.admin(
            bootstrap, **{name.replace(".", "_"): value for name, value in (properties | timeouts).items()}
        )

    owner = admin(cluster.bootstrap("SASL_SSL"))
    token = owner.createDelegationToken().delegationToken().get()
    owner.close()
    credentials = login("SCRAM-SHA-512", token.tokenInfo().tokenId(), token.hmacAsBase64String())
    properties["sasl.jaas.config"] = credentials.replace(";", ' tokenauth="true";')

    def refusal(bootstrap: str) -> str:
        client = admin(bootstrap)
        try:
            client.describeCluster().nodes().get()
        except Py4JJavaError as exc:
            return str(exc.java_exception.getCause())
        finally:
            client.close()
        return ""

    for broker in cluster.bootstrap("SASL_SSL").split(","):
        eventually(partial(refusal, broker), lambda reason: not reason)
    return properties
