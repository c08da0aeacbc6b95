"""A broker with a listener for each security protocol, and users with and without rights."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.properties import security
from tests.kit.secure_cluster import SecureCluster

STORE_PASSWORD = "changeit"


@dataclass(frozen=True)
class SecureBroker:
    """`tls`: a client's properties for the broker's certificate, and for its own of the super user."""

    cluster: SecureCluster
    tls: Mapping[str, str]

    def asked(
        self,
        ask: Callable[[KafkaAdmin], Awaitable[Any]],
        listener: str,
        more: Mapping[str, str] = {},
        *,
        protocol: str = "",
        timeout_ms: int = 60_000,
    ) -> Any:
        """By a client of the listener, with more properties. `protocol`: another one than the listener's."""
        spoken = protocol or listener
        properties = {"security.protocol": "SSL" if spoken == "MTLS" else spoken, **self.tls, **more}
        host, _, port = self.cluster.bootstrap(listener).rpartition(":")

        async def run() -> Any:
            admin = KafkaAdmin([(host, int(port))], timeout_ms=timeout_ms, security=security(properties))
            try:
                return await ask(admin)
            finally:
                await admin.aclose()

        return asyncio.run(run())


@pytest.fixture(scope="session")
def secure_kafka(java: str, kafka_libs: Path) -> Iterator[SecureBroker]:
    """PLAINTEXT and `admin` are super users; `alice` has no rights. Its stores are as Java's own tool makes them."""
    with SecureCluster(java, kafka_libs, 1, authorizer=True) as cluster:
        cluster.authority.issue("admin")
        key, trusted = (cluster.directory / f"{name}-of-keytool.p12" for name in ("admin", "trusted"))
        store = ["-storetype", "PKCS12", "-storepass", STORE_PASSWORD, "-noprompt"]
        source = ["-srckeystore", str(cluster.authority.key_store("admin", STORE_PASSWORD))]
        for arguments in (
            ["-importkeystore", *source, "-srcstorepass", STORE_PASSWORD, "-destkeystore", str(key),
             "-deststoretype", "PKCS12", "-deststorepass", STORE_PASSWORD, "-noprompt"],
            ["-importcert", "-alias", "ca", "-file", str(cluster.authority.ca), "-keystore", str(trusted), *store],
        ):  # fmt: skip
            subprocess.run([Path(java).resolve().parent / "keytool", *arguments], check=True, capture_output=True)
        stores = {
            "ssl.truststore.location": str(trusted),
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.keystore.location": str(key),
            "ssl.keystore.password": STORE_PASSWORD,
        }
        yield SecureBroker(cluster, stores)
