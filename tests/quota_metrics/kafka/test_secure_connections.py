"""Every security protocol and mechanism against a real broker, and the message when one fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    ClusterError,
    NotKafkaError,
    RefusedError,
)
from tests.quota_metrics.conftest import REAUTHENTICATION_MS, SecureBroker

pytestmark = [pytest.mark.kafka, pytest.mark.java]

OAUTH = 'x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{}";'

EXTENDED = (
    "x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub='admin' unsecuredLoginExtension_traceId='7';"
)


def login(mechanism: str, user: str = "admin", password: str | None = None) -> dict[str, str]:
    secret = password or f"{user}-secret"
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": secret}


async def described(admin: KafkaAdmin) -> Any:
    try:
        return await admin.describe_client_quotas()
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("PLAINTEXT", {}),
        ("PLAIN", login("PLAIN")),
        ("SCRAM", login("SCRAM-SHA-256")),
        ("SCRAM", login("SCRAM-SHA-512")),
        ("OAUTH", {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": OAUTH.format("admin")}),
        ("OAUTH", {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": EXTENDED}),
        ("MTLS", {}),
        ("SASLTLS", login("SCRAM-SHA-512")),
    ],
)
def test_quotas_are_altered_over_each_protocol(
    secure_kafka: SecureBroker, listener: str, properties: dict[str, str]
) -> None:
    async def run() -> Any:
        entity = entity_of({"user": f"of-{listener}-{properties.get('sasl.mechanism')}"})
        admin = secure_kafka.admin(listener, properties)
        (result,) = await admin.alter_client_quotas([QuotaAlteration(entity, {"producer_byte_rate": 1000.0})])
        assert result.error_code == 0
        quotas: dict[Entity, dict[str, float]] = {}
        while entity not in quotas:  # the controller has applied it, the broker follows
            quotas = await admin.describe_client_quotas()
        await admin.close()
        return quotas[entity]

    assert asyncio.run(run()) == {"producer_byte_rate": 1000.0}


@pytest.mark.parametrize(
    ("listener", "properties", "message"),
    [
        ("PLAIN", login("PLAIN", password="wrong"), "did not accept the PLAIN credentials: Authentication failed"),
        ("PLAIN", login("SCRAM-SHA-256"), "does not offer SCRAM-SHA-256: it offers PLAIN"),
        ("SCRAM", login("SCRAM-SHA-256", password="wrong"), "did not accept the SCRAM-SHA-256 credentials"),
        ("SCRAM", login("SCRAM-SHA-512", user="nobody"), "did not accept the SCRAM-SHA-512 credentials"),
        (
            "OAUTH",
            {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": OAUTH.replace("_sub", "_other").format("x")},
            "did not accept the OAUTHBEARER credentials",
        ),
        ("MTLS", {"ssl.truststore.location": "client.pem"}, "is not trusted"),
        (
            "MTLS",
            {"ssl.keystore.location": ""},
            "TLS with .*; it wants a client certificate that it trusts: ssl.keystore",
        ),
    ],
)
def test_invalid_credentials_raise_authentication_error(
    secure_kafka: SecureBroker, listener: str, properties: dict[str, str], message: str
) -> None:
    if "ssl.truststore.location" in properties:
        directory = Path(secure_kafka.tls["ssl.truststore.location"]).parent
        properties = {"ssl.truststore.location": str(directory / properties["ssl.truststore.location"])}
    with pytest.raises(AuthenticationError, match=message) as caught:
        asyncio.run(described(secure_kafka.admin(listener, properties)))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("listener", "as_if"), [("SASLTLS", "PLAINTEXT"), ("PLAIN", "PLAINTEXT"), ("PLAIN", "MTLS")])
def test_wrong_protocol_raises_an_error_with_the_port(secure_kafka: SecureBroker, listener: str, as_if: str) -> None:
    wrong = SecureBroker({as_if: secure_kafka.ports[listener]}, secure_kafka.tls)
    with pytest.raises((BrokerUnreachableError, AuthenticationError, NotKafkaError)) as caught:
        asyncio.run(described(wrong.admin(as_if, {}, timeout_ms=3000)))
    assert str(secure_kafka.ports[listener]) in str(caught.value)


def test_unauthorized_user_is_refused(secure_kafka: SecureBroker) -> None:
    async def run() -> Any:
        admin = secure_kafka.admin("PLAIN", login("PLAIN", user="alice"))
        (result,) = await admin.alter_client_quotas(
            [QuotaAlteration(entity_of({"user": "x"}), {"producer_byte_rate": 1.0})]
        )
        assert result.error_code == 31
        await described(admin)

    with pytest.raises(RefusedError, match=r"CLUSTER_AUTHORIZATION_FAILED \(31\)"):
        asyncio.run(run())


def test_expired_session_is_reestablished(secure_kafka: SecureBroker) -> None:
    async def run() -> int:
        admin = secure_kafka.admin("PLAIN", login("PLAIN"))
        failures = 0
        for _ in range(5):
            try:
                await admin.describe_client_quotas()
            except ClusterError:
                failures += 1
            await asyncio.sleep(REAUTHENTICATION_MS / 1000 / 2)
        await admin.close()
        return failures

    assert asyncio.run(run()) == 0


def test_mechanisms_of_a_listener_are_known(secure_kafka: SecureBroker) -> None:
    async def run(listener: str, properties: dict[str, str]) -> set[str]:
        admin = secure_kafka.admin(listener, properties)
        await admin.describe_cluster()
        try:
            return set(await admin.offered_mechanisms())
        finally:
            await admin.close()

    assert asyncio.run(run("SCRAM", login("SCRAM-SHA-256"))) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert asyncio.run(run("PLAINTEXT", {})) == set()
