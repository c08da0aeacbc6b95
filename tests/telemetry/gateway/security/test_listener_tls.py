"""TLS of a listener: client certificates, and files that change while it runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop

from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls, TlsFileError
from telemetry.gateway.security.ssl_principal import principal_mapper
from tests.kit.certificates import CertificateAuthority


def peer_names(tls: ListenerTls, context: ssl.SSLContext) -> tuple[str, str]:
    """The name in the listener's certificate, and the client's principal as a gateway sees it."""
    security = ListenerSecurity("SSL", tls.context, principal_of=principal_mapper("RULE:^CN=(.*?),.*$/$1/L"))

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(security.principal(writer.transport).encode())
        writer.close()

    async def ask() -> tuple[str, str]:
        server = await asyncio.start_server(tell, "127.0.0.1", 0, ssl=tls.context, ssl_handshake_timeout=5)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            try:
                reported = (await reader.read()).decode()
            finally:
                writer.close()
            if not reported:  # in TLS 1.3 a client learns only by reading that its certificate was refused
                raise ConnectionError("closed")
            subject = dict(part[0] for part in writer.get_extra_info("peercert")["subject"])
            return subject["commonName"], reported

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `headroom serve` runs
        return runner.run(ask())


def is_refused(tls: ListenerTls, context: ssl.SSLContext) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
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


def test_combined_pem_file_is_accepted(authority: CertificateAuthority) -> None:
    authority.issue("first")
    combined = ListenerTls(authority.store("first"), None, None, "none")
    assert peer_names(combined, client_context(authority))[0] == "first"
