"""A real cluster with a listener per security protocol, each with all SASL mechanisms, and users to authenticate."""

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headroom.demo.broker import Broker, server_properties, start_brokers
from headroom.demo.processes import LOOPBACK, Service, free_ports
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import check
from quota_metrics.kafka.frames import NegotiatedRequest
from tests.kit.certificates import CertificateAuthority
from tests.kit.kafka.jmx import jmx_options

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "MTLS")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS = ("admin", "alice", "bob", "carol")  # the password is the name and -secret
REAUTHENTICATION_MS = 4_000  # of PLAIN on SASL_PLAINTEXT
_ALTER_USERS = 51
_LOGIN = "org.apache.kafka.common.security"


def password(user: str) -> str:
    return f"{user}-secret"


class SecureCluster(Service):
    """A context manager; node 1 is the controller. With `authorizer` only `admin` and PLAINTEXT may do anything."""

    def __init__(self, java: str, libs: Path, nodes: int = 3, *, authorizer: bool = False) -> None:
        self._authorizer = authorizer
        self.directory = Path(tempfile.mkdtemp(prefix="headroom-secure-"))
        self.authority = CertificateAuthority(self.directory)
        self.authority.issue("broker")
        controller, *ports = free_ports(1 + nodes * (len(PROTOCOLS) + 1))
        self.jmx_ports, ports = ports[:nodes], ports[nodes:]
        self._ports = [dict(zip(PROTOCOLS, ports[i::nodes], strict=True)) for i in range(nodes)]
        self.brokers = [
            Broker(java, libs, self.directory / f"node-{n}", self._properties(n, of, controller), jmx_options(jmx))
            for n, (of, jmx) in enumerate(zip(self._ports, self.jmx_ports, strict=True), start=1)
        ]

    def bootstrap(self, protocol: str) -> str:
        return ",".join(f"{LOOPBACK}:{ports[protocol]}" for ports in self._ports)

    def start(self) -> None:
        start_brokers(self.brokers)
        asyncio.run(_create_scram_users(self._ports[0]["PLAINTEXT"]))

    def stop(self) -> None:
        for broker in reversed(self.brokers):
            broker.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def command_config(self, protocol: str, user: str = "admin") -> Path:
        """Headroom's own client properties for a listener, in a file."""
        values = self.client_properties(protocol, "SCRAM-SHA-512", user)
        path = self.directory / f"{protocol}-{user}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        return path

    def client_properties(self, protocol: str, mechanism: str = "PLAIN", user: str = "alice") -> dict[str, str]:
        properties = {"security.protocol": "SSL" if protocol == "MTLS" else protocol}
        if protocol.endswith("SSL") or protocol == "MTLS":
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority.ca)}
        if protocol == "MTLS":
            properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.authority.store("client"))}
        if protocol.startswith("SASL_"):
            properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login(mechanism, user)}
        return properties

    def _properties(self, number: int, ports: Mapping[str, int], controller: int) -> dict[str, str]:
        properties = server_properties(
            number, ports["PLAINTEXT"], f"{LOOPBACK}:{controller}", self.directory / f"node-{number}" / "logs"
        )
        addresses = {**ports, **({"CONTROLLER": controller} if number == 1 else {})}
        protocols = {name: "SSL" if name == "MTLS" else name for name in PROTOCOLS} | {"CONTROLLER": "PLAINTEXT"}
        properties |= {
            "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in addresses.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{one}" for name, one in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.store("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "listener.name.mtls.ssl.client.auth": "required",
            "delegation.token.secret.key": "key-of-all-tokens",
            "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
        }
        if self._authorizer:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:admin;User:CN=admin",
            }
        for name in ("sasl_plaintext", "sasl_ssl"):
            listener = f"listener.name.{name}"
            properties[f"{listener}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            for mechanism in MECHANISMS:
                properties[f"{listener}.{mechanism.lower()}.sasl.jaas.config"] = _server_login(mechanism)
        return properties


def login(mechanism: str, user: str, secret: str | None = None) -> str:
    if mechanism == "OAUTHBEARER":
        return f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";'
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f'{_LOGIN}.{module} required username="{user}" password="{secret or password(user)}";'


def _server_login(mechanism: str) -> str:
    if mechanism == "OAUTHBEARER":
        return f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    if mechanism == "PLAIN":
        users = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
        return f"{_LOGIN}.plain.PlainLoginModule required {users};"
    return f"{_LOGIN}.scram.ScramLoginModule required;"


async def _create_scram_users(port: int) -> None:
    """Sends AlterUserScramCredentials, as kafka-configs.sh does."""
    admin = KafkaAdmin([(LOOPBACK, port)])
    salt = b"salt-of-the-test"
    for mechanism, digest in ((1, "sha256"), (2, "sha512")):
        upsertions = [
            {
                "name": user,
                "mechanism": mechanism,
                "iterations": 4096,
                "salt": salt,
                "salted_password": hashlib.pbkdf2_hmac(digest, password(user).encode(), salt, 4096),
            }
            for user in USERS
        ]
        request = NegotiatedRequest(_ALTER_USERS, {"deletions": [], "upsertions": upsertions})
        response = await admin.send(request)
        for result in response.results:
            check("AlterUserScramCredentials", result.error_code, result.error_message)
    await admin.aclose()
