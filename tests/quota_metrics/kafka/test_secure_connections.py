"""Every security protocol and mechanism against a real broker, and the message when one fails."""

import asyncio
from typing import Any

import pytest

from quota_metrics.config.entities import Entity, QuotaAlteration, entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import ClusterError, RefusedError
from tests.kit.secure_cluster import MECHANISMS, REAUTHENTICATION_MS, password
from tests.quota_metrics.conftest import SecureBroker

pytestmark = [pytest.mark.kafka, pytest.mark.java]

OAUTH = 'x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{}";'

EXTENDED = (
    "x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub='admin' unsecuredLoginExtension_traceId='7';"
)


def login(mechanism: str, user: str = "admin", secret: str = "") -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": secret or password(user)}


@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("PLAINTEXT", {}),
        ("SASL_PLAINTEXT", login("PLAIN")),
        ("SASL_PLAINTEXT", login("SCRAM-SHA-256")),
        ("SASL_PLAINTEXT", login("SCRAM-SHA-512")),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": OAUTH.format("admin")}),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": EXTENDED}),
        ("MTLS", {}),
        ("SASL_SSL", login("SCRAM-SHA-512")),
    ],
)
def test_quotas_are_altered_over_each_protocol(
    secure_kafka: SecureBroker, listener: str, properties: dict[str, str]
) -> None:
    entity = entity_of({"user": f"of-{listener}-{properties.get('sasl.mechanism')}"})

    async def alter(admin: KafkaAdmin) -> Any:
        (result,) = await admin.alter_client_quotas([QuotaAlteration(entity, {"producer_byte_rate": 1000.0})])
        assert result.error_code == 0
        quotas: dict[Entity, dict[str, float]] = {}
        while entity not in quotas:  # the controller has applied it, the broker follows
            quotas = await admin.describe_client_quotas()
        return quotas[entity]

    assert secure_kafka.asked(alter, listener, properties) == {"producer_byte_rate": 1000.0}


@pytest.mark.parametrize(
    ("listener", "properties", "message"),
    [
        (
            "SASL_PLAINTEXT",
            login("PLAIN", secret="wrong"),
            "did not accept the PLAIN credentials: Authentication failed",
        ),
        ("SASL_PLAINTEXT", login("SCRAM-SHA-256", secret="wrong"), "did not accept the SCRAM-SHA-256 credentials"),
        ("SASL_PLAINTEXT", login("SCRAM-SHA-512", "nobody"), "did not accept the SCRAM-SHA-512 credentials"),
        (
            "SASL_PLAINTEXT",
            {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": OAUTH.replace("_sub", "_other").format("x")},
            "did not accept the OAUTHBEARER credentials",
        ),
        ("MTLS", {"ssl.truststore.location": "admin.pem"}, "is not trusted"),
        (
            "MTLS",
            {"ssl.keystore.location": ""},
            "TLS with .*; it wants a client certificate that it trusts: ssl.keystore",
        ),
    ],
)
def test_invalid_credentials_are_refused(
    secure_kafka: SecureBroker, listener: str, properties: dict[str, str], message: str
) -> None:
    if "ssl.truststore.location" in properties:
        file = secure_kafka.cluster.directory / properties["ssl.truststore.location"]
        properties = {"ssl.truststore.location": str(file)}
    with pytest.raises(ClusterError, match=message) as caught:
        secure_kafka.asked(KafkaAdmin.describe_client_quotas, listener, properties)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("listener", "as_if"),
    [("SASL_SSL", "PLAINTEXT"), ("SASL_PLAINTEXT", "PLAINTEXT"), ("SASL_PLAINTEXT", "MTLS")],
)
def test_wrong_protocol_raises_an_error_with_the_port(secure_kafka: SecureBroker, listener: str, as_if: str) -> None:
    with pytest.raises(ClusterError) as caught:
        secure_kafka.asked(KafkaAdmin.describe_client_quotas, listener, protocol=as_if, timeout_ms=3000)
    assert secure_kafka.cluster.bootstrap(listener) in str(caught.value)


def test_unauthorized_user_is_refused(secure_kafka: SecureBroker) -> None:
    async def alter(admin: KafkaAdmin) -> Any:
        (result,) = await admin.alter_client_quotas(
            [QuotaAlteration(entity_of({"user": "x"}), {"producer_byte_rate": 1.0})]
        )
        assert result.error_code == 31
        await admin.describe_client_quotas()

    with pytest.raises(
        RefusedError, match=r"^DescribeClientQuotas was refused with CLUSTER_AUTHORIZATION_FAILED \(31\)"
    ):
        secure_kafka.asked(alter, "SASL_PLAINTEXT", login("PLAIN", "alice"))


def test_expired_session_is_reestablished(secure_kafka: SecureBroker) -> None:
    async def describe(admin: KafkaAdmin) -> int:
        failures = 0
        for _ in range(4):
            try:
                await admin.describe_client_quotas()
            except ClusterError:
                failures += 1
            await asyncio.sleep(REAUTHENTICATION_MS / 1000 / 2)
        return failures

    assert secure_kafka.asked(describe, "SASL_PLAINTEXT", login("PLAIN")) == 0


def test_mechanisms_of_a_listener_are_known(secure_kafka: SecureBroker) -> None:
    async def mechanisms(admin: KafkaAdmin) -> set[str]:
        await admin.describe_cluster()
        return set(await admin.offered_mechanisms())

    assert secure_kafka.asked(mechanisms, "SASL_PLAINTEXT", login("SCRAM-SHA-256")) == set(MECHANISMS)
    assert secure_kafka.asked(mechanisms, "PLAINTEXT") == set()
