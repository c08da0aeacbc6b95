"""`headroom gateway check` and `cluster show` as a user runs them, and a gateway in front of the same brokers while a
right is revoked."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from typer.testing import CliRunner

from headroom.cli import gateway
from headroom.cli.main import app
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import LOOPBACK, free_ports
from telemetry.gateway.security.listener_security import ListenerSecurity
from tests.kit.secure_cluster import SecureCluster
from tests.kit.serving import eventually
from tests.telemetry.conftest import RunningGateway
from tests.telemetry.gateway.security.conftest import broker_security


@pytest.fixture(scope="module")
def guarded(java: str, kafka_libs: Path) -> Iterator[SecureCluster]:
    """One broker with an authorizer."""
    with SecureCluster(java, kafka_libs, nodes=1, authorizer=True) as cluster:
        yield cluster


def run(*arguments: str, command: str = "gateway check") -> tuple[int, str]:
    result = CliRunner().invoke(app, [*command.split(), *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--upstream", "nowhere"], "is not HOST:PORT"),
        (["--upstream", "a:1", "--listen", "nowhere"], "is not HOST:PORT"),
        (["--upstream", "SASL_SSL://a:9092"], "SASL_SSL://a:9092 contradicts security.protocol=PLAINTEXT"),
    ],
)
def test_invalid_address_exits_with_2(arguments: list[str], message: str) -> None:
    code, said = run(*arguments)
    assert (code, message in said) == (2, True)


@pytest.mark.kafka
def test_check_reports_cluster_clock_and_port(kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run("--upstream", f" PLAINTEXT://{kafka.bootstrap} ,")
    assert code == 0
    assert "FAIL" not in said
    assert "broker 1 answers at" in said
    assert "ok   the controller's clock and ours agree" in said
    monkeypatch.setattr(gateway, "now_ms", lambda: time.time_ns() // 1_000_000 + 60_000)
    code, said = run("--upstream", kafka.bootstrap)
    assert code == 1
    assert "FAIL the controller's clock and ours agree" in said
    assert "s behind" in said
    monkeypatch.undo()
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        code, said = run("--upstream", kafka.bootstrap, "--listen", f"{LOOPBACK}:{port}")
    assert code == 1
    assert f"FAIL port {port}, which clients bootstrap from, is free on {LOOPBACK}" in said


@pytest.mark.kafka
def test_every_address_of_the_list_has_to_answer(kafka: LocalCluster, tmp_path: Path) -> None:
    closed = f"{LOOPBACK}:{free_ports(1)[0]}"
    code, said = run("--upstream", f"nohost.invalid:9092,{kafka.bootstrap},{closed}", "--timeout-ms", "5000")
    assert code == 1
    assert f"ok   {kafka.bootstrap}, of --upstream, answers" in said
    assert "FAIL nohost.invalid:9092, of --upstream, answers\n     cannot reach nohost.invalid:9092" in said
    assert f"FAIL {closed}, of --upstream, answers\n     cannot reach {closed}: Connection refused" in said
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocl=PLAINTEXT\n")
    code, said = run("--upstream", kafka.bootstrap, "--command-config", str(properties))
    assert (code, "'security.protocl' is unknown, did you mean security.protocol?" in said) == (2, True)


@pytest.mark.kafka
def test_advertised_names_are_resolved(kafka: LocalCluster) -> None:
    listen = ("--upstream", kafka.bootstrap, "--listen", f"{LOOPBACK}:{free_ports(1)[0]}")
    code, said = run(*listen, "--advertised-host", "localhost", "--broker-names", "broker-{id}.invalid:443")
    assert code == 1
    assert "ok   localhost, the advertised host, resolves here" in said
    assert "FAIL broker-1.invalid, broker 1's name at the gateway, resolves here" in said
    assert "which stands for broker" not in said  # all brokers share one port
    code, said = run(*listen, "--broker-names", "localhost")
    assert (code, "is no host name with one {id} in it" in said) == (2, True)
    assert run("--upstream", kafka.bootstrap, "--advertised-host", "x")[0] == 2


@pytest.mark.kafka
def test_ports_that_have_to_lead_to_ours_are_listed(kafka: LocalCluster) -> None:
    port = free_ports(1)[0]
    listen = ("--upstream", kafka.bootstrap, "--listen", f"{LOOPBACK}:{port}", "--advertised-port")
    assert f"note clients are sent to port 443, which has to lead to port {port} of" in run(*listen, "443")[1]
    said = run(*listen, "65534")[1]
    assert f"FAIL clients are sent to port 65536, which has to lead to port {port + 2} of" in said
    assert run("--upstream", kafka.bootstrap, "--advertised-port", "443")[0] == 2


@pytest.mark.kafka
def test_facts_as_table_and_json(kafka: LocalCluster) -> None:
    code, said = run("--upstream", kafka.bootstrap, "--output", "json", command="cluster show")
    facts = json.loads(said)
    assert code == 0
    assert (facts["release"], facts["metadata_version"], facts["authorizer"]) == ("4.3", "4.3", False)
    (broker,) = facts["brokers"]
    assert (broker["quota_window_num"], broker["quota_window_size_ms"], broker["callback_class"]) == (11, 1000, "")
    code, said = run("--upstream", kafka.bootstrap, command="cluster show")
    assert code == 0
    assert "Kafka 4.3, metadata.version 4.3" in said
    assert "11 x 1 s" in said


def test_signature_of_the_host_is_named(tmp_path: Path) -> None:
    """The file of AWS's documentation."""
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\n"
        "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;\n"
        "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n"
    )
    code, said = run("--upstream", f"{LOOPBACK}:1", "--command-config", str(properties))
    assert (code, "AWS_MSK_IAM signs the name of the host" in said, "OAUTHBEARER" in said) == (2, True, True)


@pytest.mark.kafka
def test_missing_permissions_are_reported(guarded: SecureCluster) -> None:
    for user, expected in (("admin", 0), ("alice", 1)):
        config = guarded.command_config("SASL_SSL", user=user)
        code, said = run("--upstream", guarded.bootstrap("SASL_SSL"), "--command-config", str(config))
        assert code == expected, said
    assert "FAIL client quotas can be read" in said
    assert "--operation DescribeConfigs" in said
    assert "FAIL the cluster's clock can be read" in said


@pytest.mark.kafka
@pytest.mark.java
def test_revoked_acl_is_refused_with_kafkas_own_error(jvm: Jvm, guarded: SecureCluster, tmp_path: Path) -> None:
    """To a session that goes on, as without the gateway."""
    protocol, topic = "SASL_PLAINTEXT", "revoked-acl"
    gateway = RunningGateway(
        guarded.bootstrap(protocol),
        tmp_path / "spool",
        security=ListenerSecurity(protocol=protocol),
        admin=broker_security(guarded, protocol),
    )
    with Admin(jvm, guarded.bootstrap("PLAINTEXT")) as topics:
        topics.create_topics([topic], partitions=1, replicas=1)
    properties = guarded.client_properties(protocol, "SCRAM-SHA-512", "alice")
    # An idempotent producer does not recover from a right that is missing at its first request.
    config = {name.replace(".", "_"): value for name, value in properties.items()} | {"enable_idempotence": "false"}
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord
    producers = [jvm.producer(one, topic, **config) for one in (guarded.bootstrap(protocol), gateway.bootstrap)]

    def refusals() -> list[str]:
        """Direct and through the gateway; empty: acknowledged."""
        said = []
        for producer in producers:
            try:
                producer.send(record(topic, b"value")).get()
                said.append("")
            except Py4JJavaError as exc:
                said.append(str(exc.java_exception.getCause()))
        return said

    common = jvm.classes.org.apache.kafka.common
    resource = common.resource.ResourcePattern(
        common.resource.ResourceType.TOPIC, topic, common.resource.PatternType.LITERAL
    )
    allowed = (common.acl.AclOperation.ALL, common.acl.AclPermissionType.ALLOW)
    right = common.acl.AclBinding(resource, common.acl.AccessControlEntry("User:alice", "*", *allowed))
    admin = jvm.admin(guarded.bootstrap("PLAINTEXT"))
    admin.createAcls([right]).all().get()
    eventually(refusals, lambda said: not any(said))
    admin.deleteAcls([right.toFilter()]).all().get()
    direct, through_us = eventually(refusals, lambda said: all("TopicAuthorizationException" in one for one in said))
    assert through_us == direct
    for client in (admin, *producers):
        client.close()
    gateway.stop()
