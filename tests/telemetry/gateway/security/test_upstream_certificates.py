"""Certificates of the gateway at the brokers: which file is used, and when it is read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from headroom.server.processes.security import UpstreamCertificates
from quota_metrics.kafka.cluster import Node
from quota_metrics.kafka.properties import security
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls, UpstreamCertificateError
from tests.kit.certificates import CertificateAuthority
from tests.kit.gateways import new_gateway

USER = "CN=carol,O=Acme"


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


def test_certificate_file_per_principal_is_reloaded_on_change(authority: CertificateAuthority, tmp_path: Path) -> None:
    authority.issue("carol")
    directory = tmp_path / "principals"
    directory.mkdir()
    certificates = UpstreamCertificates(directory, {"ssl.truststore.location": str(authority.ca)})
    with pytest.raises(UpstreamCertificateError, match="no certificate for a principal"):
        certificates.context_of("../carol-store")
    file = directory / f"{quote(USER, safe='')}.pem"
    file.write_bytes(authority.store("carol").read_bytes())
    context = certificates.context_of(USER)
    assert certificates.context_of(USER) is context
    os.utime(file, ns=(1, 1))
    assert certificates.context_of(USER) is not context
    file.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    with pytest.raises(UpstreamCertificateError, match="cannot be used"):
        certificates.context_of(USER)


class Broker:
    """Asks for certificates, notes their subjects, says hello and keeps the connections open."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def greet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert")
        self.subjects.append(certificate["subject"][0][0][1])
        self.writers.append(writer)
        writer.write(b"\0\0\0\4mine")


def test_connections_to_brokers_use_renewed_files(tmp_path: Path) -> None:
    """Key store and trust store; what is open stays open, and unusable files change nothing."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = CertificateAuthority(tmp_path / "old"), CertificateAuthority(tmp_path / "new")
    for authority in (old, new):
        authority.issue(f"by-{authority.ca.parent.name}")
    trust, keys = tmp_path / "trust.pem", tmp_path / "keys.pem"

    def install(key_store: bytes, *trusted: CertificateAuthority) -> None:
        keys.write_bytes(key_store)
        trust.write_bytes(b"".join(authority.ca.read_bytes() for authority in trusted))

    install(old.store("by-old").read_bytes(), old)
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(trust),
        "ssl.keystore.location": str(keys),
        "ssl.key.location": str(keys),
    }
    upstream_tls = security(properties).tls

    async def connections() -> list[str]:
        broker = Broker()
        servers = []
        for authority in (old, new):
            context = ListenerTls(*authority.issue("broker"), trust, "required").context
            servers.append(await asyncio.start_server(broker.greet, "127.0.0.1", 0, ssl=context))
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        gateway = new_gateway(
            listener=ListenerOptions("127.0.0.1", 0, security=ListenerSecurity(upstream_tls=upstream_tls))
        )
        await gateway.start([Node(node_id, "127.0.0.1", port) for node_id, port in enumerate(ports)])
        listening = {node.id: port for node, port in gateway.ports}

        async def connect(node_id: int) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", listening[node_id])
            clients.append(writer)
            assert await reader.readexactly(8) == b"\0\0\0\4mine"
            return reader

        clients: list[asyncio.StreamWriter] = []
        first = await connect(0)
        install(new.store("by-new").read_bytes(), old, new)
        await connect(1)
        install(b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n", old, new)
        await connect(0)
        broker.writers[0].write(b"\0\0\0\4more")
        assert await first.readexactly(8) == b"\0\0\0\4more"
        for writer in clients:
            writer.close()
        await gateway.close(0)
        for server in servers:
            server.close()
        return broker.subjects

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(connections()) == ["by-old", "by-new", "by-new"]
