"""Clients that the broker refuses get its own errors and leave no rows; clients that authenticate repeatedly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from exporters.model import Push, RecordKind
from exporters.spool.records import decode_push
from headroom.demo.jvm import Jvm
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.authentication import Mechanism, OAuthBearer, Plain, Scram, Security
from quota_metrics.kafka.errors import ClusterError
from quota_metrics.kafka.oauthbearer import unsecured
from tests.kit.secure_clients import JavaClient, LibrdkafkaClient
from tests.kit.secure_cluster import REAUTHENTICATION_MS, SecureCluster
from tests.telemetry.gateway.security.conftest import StartGateway, telemetry_users

pytestmark = [pytest.mark.kafka, pytest.mark.java]


def expired() -> str:
    return unsecured({"sub": "alice"}, now_s=lambda: time.time() - 86_400)


def refusal(bootstrap: str, mechanism: Mechanism) -> str:
    """The error that Headroom's admin client reports, without the address."""

    async def ask() -> str:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        admin = KafkaAdmin([(host, int(port))], security=Security(sasl=mechanism))
        try:
            with pytest.raises(ClusterError) as refused:
                await admin.describe_cluster()
        finally:
            await admin.close()
        return str(refused.value).partition(" did not accept")[2]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "mechanism",
    [
        Plain("alice", "not-her-secret"),
        Scram("sha256", "alice", "not-her-secret"),
        Scram("sha512", "mallory", "any"),
        OAuthBearer(expired),
    ],
    ids=lambda mechanism: mechanism.name,
)
def test_broker_refusal_is_forwarded_and_leaves_no_principal(
    mechanism: Mechanism, secure_cluster: SecureCluster, secure_gateway: StartGateway
) -> None:
    gateway = secure_gateway("SASL_PLAINTEXT", "SASL_PLAINTEXT")
    reported = refusal(gateway.bootstrap, mechanism)
    assert reported == refusal(secure_cluster.bootstrap("SASL_PLAINTEXT"), mechanism)
    assert reported
    assert "secret" not in reported
    assert telemetry_users(gateway, "headroom") == set()
    assert "mallory" not in {user for user, _ in gateway.meter.clients()}


@pytest.mark.parametrize("family", ["java", "librdkafka"])
def test_clients_reauthenticate_while_pushing(
    family: str,
    jvm: Jvm,
    secure_cluster: SecureCluster,
    secure_gateway: StartGateway,
    new_secure_topic: Callable[[str], str],
) -> None:
    gateway = secure_gateway("SASL_PLAINTEXT", "SASL_PLAINTEXT")
    topic = new_secure_topic(f"again-{family}")
    client_id = f"again-{family}"
    config = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    client = (
        JavaClient(jvm, gateway.bootstrap, client_id, secure_cluster.client_properties("SASL_PLAINTEXT"))
        if family == "java"
        else LibrdkafkaClient(gateway.bootstrap, client_id, config | {"sasl.password": "alice-secret"})
    )

    def mine() -> list[Push]:
        pushes = [decode_push(body) for kind, body in gateway.records if kind is RecordKind.PUSH]
        return [push for push in pushes if push.client_id == client_id]

    def pushes_for_ms() -> int:
        times = [push.received_at_ms for push in mine()]
        return max(times, default=0) - min(times, default=0)

    client.produce(topic, [b"first"] * 10, lambda: pushes_for_ms() > 2 * REAUTHENTICATION_MS)
    assert {push.connection.principal for push in mine()} == {"alice"}
    assert pushes_for_ms() > 2 * REAUTHENTICATION_MS
