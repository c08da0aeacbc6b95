"""A broker with a listener for each security protocol and mechanism, and users with and without rights."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headroom.demo.broker import Broker, server_properties
from headroom.demo.processes import LOOPBACK, free_ports
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import check
from quota_metrics.kafka.frames import NegotiatedRequest
from quota_metrics.kafka.properties import security

STORE_PASSWORD = "changeit"
_ALTER_USERS = 51
LOGIN = "org.apache.kafka.common.security"
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "PLAIN": "SASL_PLAINTEXT",
    "SCRAM": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
    "MTLS": "SSL",
    "SASLTLS": "SASL_SSL",
}
REAUTHENTICATION_MS = 1500


@dataclass(frozen=True)
class SecureBroker:
    """Ports by listener, and a client's properties for its certificates."""

    ports: Mapping[str, int]
    tls: Mapping[str, str]

    def admin(self, listener: str, more: Mapping[str, str], timeout_ms: int = 60_000) -> KafkaAdmin:
        """A client of the listener, with more properties."""
        properties = {"security.protocol": LISTENERS[listener], **self.tls, **more}
        address = (LOOPBACK, self.ports[listener])
        return KafkaAdmin([address], timeout_ms=timeout_ms, security=security(properties))


@pytest.fixture(scope="session")
def secure_kafka(java: str, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """PLAINTEXT and `admin` are super users; `alice` has no rights. Each password is the name and -secret."""
    directory = tmp_path_factory.mktemp("secure-kafka")
    tls = certificates(java, directory)
    controller, *ports = free_ports(len(LISTENERS) + 1)
    by_listener = dict(zip(LISTENERS, ports, strict=True))
    properties = server_properties(1, ports[0], f"{LOOPBACK}:{controller}", directory / "logs")
    properties |= listeners(by_listener, controller) | server_stores(directory)
    broker = Broker(java, kafka_libs, directory / "node", properties)
    broker.format()
    try:
        broker.start()
        broker.wait_ready()
        asyncio.run(add_scram_user(by_listener["PLAINTEXT"], "admin"))
        yield SecureBroker(by_listener, tls)
    finally:
        broker.stop()


def listeners(ports: Mapping[str, int], controller: int) -> dict[str, str]:
    plain = f'{LOGIN}.plain.PlainLoginModule required user_admin="admin-secret" user_alice="alice-secret";'
    scram_login = f"{LOGIN}.scram.ScramLoginModule required;"
    oauth = f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    protocols = {**LISTENERS, "CONTROLLER": "PLAINTEXT"}
    return {
        "listeners": ",".join(
            f"{name}://{LOOPBACK}:{port}" for name, port in {**ports, "CONTROLLER": controller}.items()
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": plain,
        "listener.name.plain.plain.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": scram_login,
        "listener.name.scram.scram-sha-512.sasl.jaas.config": scram_login,
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": oauth,
        "listener.name.sasltls.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasltls.scram-sha-512.sasl.jaas.config": scram_login,
        "listener.name.mtls.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin;User:CN=client",
    }


def server_stores(directory: Path) -> dict[str, str]:
    return {
        "ssl.keystore.location": str(directory / "server.p12"),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.truststore.location": str(directory / "client.pem"),
        "ssl.truststore.type": "PEM",
    }


def certificates(java: str, directory: Path) -> dict[str, str]:
    """Self-signed, by keytool: the server's store, and a client's properties with its own and the server's."""
    keytool = Path(java).resolve().parent / "keytool"
    for name in ("server", "client"):
        store = ["-keystore", str(directory / f"{name}.p12"), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
        subject = ["-alias", name, "-dname", f"CN={name}", "-ext", f"san=ip:{LOOPBACK}"]
        subprocess.run(
            [keytool, "-genkeypair", "-keyalg", "EC", "-validity", "2", *store, *subject],
            check=True,
            capture_output=True,
        )
        exported = ["-rfc", "-file", str(directory / f"{name}.pem"), "-alias", name]
        subprocess.run([keytool, "-exportcert", *store, *exported], check=True, capture_output=True)
    trusted = ["-keystore", str(directory / "trusted.p12"), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    subprocess.run(
        [keytool, "-importcert", "-noprompt", "-alias", "server", "-file", str(directory / "server.pem"), *trusted],
        check=True,
        capture_output=True,
    )
    return {
        "ssl.truststore.location": str(directory / "trusted.p12"),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.keystore.location": str(directory / "client.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
    }


async def add_scram_user(port: int, user: str) -> None:
    """Sends AlterUserScramCredentials, as kafka-configs.sh does."""
    admin = KafkaAdmin([(LOOPBACK, port)])
    salt = b"salt-of-the-test"
    for mechanism, digest in ((1, "sha256"), (2, "sha512")):
        upsertion = {
            "name": user,
            "mechanism": mechanism,
            "iterations": 4096,
            "salt": salt,
            "salted_password": hashlib.pbkdf2_hmac(digest, f"{user}-secret".encode(), salt, 4096),
        }
        response = await admin.send(NegotiatedRequest(_ALTER_USERS, {"deletions": (), "upsertions": [upsertion]}))
        for result in response.results:
            check("AlterUserScramCredentials", result.error_code, result.error_message)
    await admin.close()
