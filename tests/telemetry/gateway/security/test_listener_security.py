"""TLS at the listener and at the brokers: client certificates, principals by mapping rules, files that change."""

import asyncio
import os
import ssl
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from exporters.listening_socket import listening_socket
from headroom.server.processes.security import UpstreamCertificates
from quota_metrics.kafka.cluster import Node
from quota_metrics.kafka.properties import security
from telemetry.gateway.connection_limits import Admission, AdmissionLimits
from telemetry.gateway.listener import HandshakeServer, ListenerOptions
from telemetry.gateway.security.listener_security import (
    ListenerSecurity,
    ListenerTls,
    TlsFileError,
    UpstreamCertificateError,
)
from telemetry.gateway.security.ssl_principal import NoMatchingRuleError, principal_mapper
from tests.kit.certificates import CertificateAuthority
from tests.kit.gateways import new_gateway


def peer_names(tls: ListenerTls, context: ssl.SSLContext) -> tuple[str, str]:
    """The name in the listener's certificate, and the client's principal as a gateway sees it."""
    security = ListenerSecurity("SSL", tls.context, principal_of=principal_mapper("RULE:^CN=(.*?),.*$/$1/L"))

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(security.principal(writer.transport).encode())
        writer.close()

    def serve() -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), tell)

    async def ask() -> tuple[str, str]:
        listener = listening_socket("127.0.0.1", 0)
        listener.setblocking(False)
        with closing(HandshakeServer(listener, tls.context, Admission(AdmissionLimits()), serve)):
            reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=context)
            with closing(writer):
                reported = (await reader.read()).decode()
            subject = dict(part[0] for part in writer.get_extra_info("peercert")["subject"])
            return subject["commonName"], reported

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `headroom serve` runs
        return runner.run(ask())


def is_refused(tls: ListenerTls, context: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLError, match="ALERT"):  # else clients take it for a broken network, and come again
        peer_names(tls, context)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture
def tls(authority: CertificateAuthority) -> ListenerTls:
    return ListenerTls(*authority.issue("first"), authority.ca, "requested")


def client_context(authority: CertificateAuthority, name: str = "", subject: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False
    if name:
        context.load_cert_chain(*authority.issue(name, subject))
    return context


def test_certificate_subject_is_the_principal_and_may_be_required(
    authority: CertificateAuthority, tls: ListenerTls
) -> None:
    nobody, alice = client_context(authority), client_context(authority, "client", "/C=DE/CN=Alice")
    assert peer_names(tls, nobody)[1] == "ANONYMOUS"
    assert peer_names(ListenerTls(authority.store("first"), None, None, "none"), nobody) == ("first", "ANONYMOUS")
    assert peer_names(tls, alice)[1] == "alice"
    requires = ListenerTls(*authority.issue("first"), authority.ca, "required")
    is_refused(requires, nobody)
    assert peer_names(requires, alice)[1] == "alice"


def test_changed_files_apply_to_the_next_handshake_and_invalid_ones_do_not(
    authority: CertificateAuthority, tls: ListenerTls, tmp_path: Path
) -> None:
    context = client_context(authority)
    assert peer_names(tls, context)[0] == "first"
    for name in ("second", "third"):
        certificate, key = authority.issue(name)
        key.replace(tmp_path / "first.key")
        certificate.replace(tmp_path / "first.pem")
        assert peer_names(tls, context)[0] == name
        (tmp_path / "first.pem").write_text("no certificate")
        assert peer_names(tls, context)[0] == name


def test_certificate_of_another_ca_is_refused_and_a_replaced_ca_applies_to_the_next_handshake(
    authority: CertificateAuthority, tls: ListenerTls, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = CertificateAuthority(tmp_path / "other")
    mine, theirs = client_context(authority, "client", "/C=DE/CN=alice"), client_context(authority)
    theirs.load_cert_chain(*other.issue("client", "/C=DE/CN=bob"))
    assert peer_names(tls, mine)[1] == "alice"
    is_refused(tls, theirs)
    authority.ca.write_text(other.ca.read_text())
    assert peer_names(tls, theirs)[1] == "bob"
    is_refused(tls, mine)


def test_pkcs12_stores_are_read_and_reloaded(authority: CertificateAuthority, tmp_path: Path) -> None:
    opens = tmp_path / "password"
    opens.write_text("one\n")
    authority.issue("first")
    stores = authority.key_store("first", "one"), None, authority.trust_store("one"), "required"
    tls = ListenerTls(*stores, keystore_password=opens, truststore_password=opens)
    context = client_context(authority, "client", "/C=DE/CN=alice")
    assert peer_names(tls, context) == ("first", "alice")
    authority.issue("second")
    authority.key_store("second", "two").replace(tmp_path / "first.p12")
    assert peer_names(tls, context)[0] == "first"  # the password does not open it yet
    authority.trust_store("two")
    opens.write_text("two")
    assert peer_names(tls, context) == ("second", "alice")


def test_invalid_files_are_reported_by_name(authority: CertificateAuthority, tmp_path: Path) -> None:
    certificate, _ = authority.issue("first")
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed")
    for store, key, message in (
        (certificate, None, r"first\.pem: it has no private key"),
        (certificate, tmp_path / "missing.key", r"first\.pem.*missing"),
        (authority.key_store("first", "secret"), None, r"first\.p12: it is neither PEM nor PKCS12, or the password"),
        (authority.trust_store(""), None, r"ca\.p12: it has no private key"),
        (jks, None, r"store\.jks: it is a JKS store; convert it: keytool"),
    ):
        with pytest.raises(TlsFileError, match=message):
            ListenerTls(store, key, None, "none")


NAME = "CN=alice,O=Acme\\, Inc,C=DE"
NESTED = "RULE:^CN=((a+)+)$/$2/,DEFAULT"  # Python's own engine would need hours for a subject that does not match


@pytest.mark.parametrize(
    ("rules", "subject", "principal"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        ("RULE:^CN=(.*?),.*$/$1/", NAME, "alice"),
        ("RULE:^CN=(.*?),.*$/$1/U", NAME, "ALICE"),
        ("RULE:^OU=(.*?),.*$/$1/,RULE:^CN=(.*?),O=(.*?),C=.*$/$1@$2/L", NAME, "alice@acme\\, inc"),
        ("RULE:^OU=(.*)$/$1/L, DEFAULT", NAME, NAME),
        ("RULE:^CN=(.+?)(,.*|$)/$1/", "CN=alice", "alice"),
        (r"RULE:^CN=(.*?),O=(.*)$/$2\/$1@example\.com/", "CN=alice,O=Acme", "Acme/alice@example.com"),
        (NESTED, "CN=" + "a" * 30, "a" * 30),
        (NESTED, "CN=" + "a" * 40 + "!", "CN=" + "a" * 40 + "!"),
    ],
)
def test_mapping_rules_are_applied_in_linear_time(rules: str, subject: str, principal: str) -> None:
    assert principal_mapper(rules)(subject) == principal


def test_subject_without_matching_rule_is_refused() -> None:
    with pytest.raises(NoMatchingRuleError):
        principal_mapper("RULE:^OU=(.*)$/$1/")(NAME)


def test_unmatched_groups_are_empty_and_long_names_are_kept() -> None:
    assert principal_mapper("RULE:^CN=(?:(x)|(.*))$/$1-$2-$3/")("CN=" + "y" * 5_000) == "-" + "y" * 5_000 + "-$3"


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*?)", "NONE", "RULE:(/x/", "DEFAULT,,", r"RULE:(a)\1/x/"])
def test_invalid_rules_raise_value_error(rules: str) -> None:
    with pytest.raises(ValueError, match=r"is no (rule|pattern)"):
        principal_mapper(rules)


USER = "CN=carol,O=Acme"


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
