"""TLS of a listener: client certificates, and files that change while it runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls, TlsFileError
from telemetry.gateway.security.ssl_principal import principal_mapper
from tests.kit.certificates import CertificateAuthority


class Listener:
    """Sends each client its principal as a gateway sees it. Runs in uvloop, as `headroom serve` does."""

    def __init__(self, tls: ListenerTls) -> None:
        self._security = ListenerSecurity("SSL", tls.context, principal_of=principal_mapper("RULE:^CN=(.*?),.*$/$1/L"))
        self._loop = uvloop.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._tell, "127.0.0.1", 0, ssl=tls.context, ssl_handshake_timeout=5)
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._security.principal(writer.transport).encode())
        writer.close()

    def peer_names(self, context: ssl.SSLContext) -> tuple[str, str]:
        """The name in the listener's certificate, and the principal that the listener sends."""
        return self._loop.run_until_complete(asyncio.to_thread(self._peer_names, context))

    def _peer_names(self, context: ssl.SSLContext) -> tuple[str, str]:
        with socket.create_connection(("127.0.0.1", self._port), 5) as plain, context.wrap_socket(plain) as client:
            certificate: dict[str, Any] = client.getpeercert() or {}
            subject = dict(part[0] for part in certificate["subject"])
            reported = client.recv(100).decode()
            if not reported:  # in TLS 1.3 a client learns only by reading that its certificate was refused
                raise ConnectionError("closed")
            return subject["commonName"], reported

    def close(self) -> None:
        self._server.close()
        self._loop.run_until_complete(self._server.wait_closed())
        self._loop.close()


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture
def listener(authority: CertificateAuthority) -> Iterator[Listener]:
    running = Listener(ListenerTls(*authority.issue("first"), authority.ca, "requested"))
    yield running
    running.close()


def client_context(authority: CertificateAuthority, name: str = "", subject: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False
    if name:
        context.load_cert_chain(*authority.issue(name, subject))
    return context


def test_certificate_subject_is_the_principal(authority: CertificateAuthority, listener: Listener) -> None:
    assert listener.peer_names(client_context(authority))[1] == "ANONYMOUS"
    assert listener.peer_names(client_context(authority, "client", "/C=DE/CN=Alice"))[1] == "alice"


def test_client_without_required_certificate_is_refused(authority: CertificateAuthority) -> None:
    listener = Listener(ListenerTls(*authority.issue("first"), authority.ca, "required"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        listener.peer_names(client_context(authority))
    assert listener.peer_names(client_context(authority, "client", "/C=DE/CN=bob"))[1] == "bob"
    listener.close()


def test_changed_files_apply_to_the_next_handshake_and_invalid_ones_do_not(
    authority: CertificateAuthority, listener: Listener, tmp_path: Path
) -> None:
    context = client_context(authority)
    assert listener.peer_names(context)[0] == "first"
    certificate, key = authority.issue("second")
    key.replace(tmp_path / "first.key")
    certificate.replace(tmp_path / "first.pem")
    assert listener.peer_names(context)[0] == "second"
    (tmp_path / "first.pem").write_text("no certificate")
    assert listener.peer_names(context)[0] == "second"
    certificate, key = authority.issue("third")
    key.replace(tmp_path / "first.key")
    certificate.replace(tmp_path / "first.pem")
    assert listener.peer_names(context)[0] == "third"


def test_certificate_of_another_ca_is_refused_and_a_replaced_ca_applies_to_the_next_handshake(
    authority: CertificateAuthority, listener: Listener, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = CertificateAuthority(tmp_path / "other")
    mine = client_context(authority, "client", "/C=DE/CN=alice")
    theirs = client_context(authority)
    theirs.load_cert_chain(*other.issue("client", "/C=DE/CN=bob"))
    assert listener.peer_names(mine)[1] == "alice"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        listener.peer_names(theirs)
    authority.ca.write_text(other.ca.read_text())
    assert listener.peer_names(theirs)[1] == "bob"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        listener.peer_names(mine)


def test_pkcs12_stores_are_read_and_reloaded(authority: CertificateAuthority, tmp_path: Path) -> None:
    opens = tmp_path / "password"
    opens.write_text("one\n")
    authority.issue("first")
    stores = authority.key_store("first", "one"), None, authority.trust_store("one"), "required"
    listener = Listener(ListenerTls(*stores, keystore_password=opens, truststore_password=opens))
    context = client_context(authority, "client", "/C=DE/CN=alice")
    assert listener.peer_names(context) == ("first", "alice")
    authority.issue("second")
    authority.key_store("second", "two").replace(tmp_path / "first.p12")
    assert listener.peer_names(context)[0] == "first"  # the password does not open it yet
    authority.trust_store("two")
    opens.write_text("two")
    assert listener.peer_names(context) == ("second", "alice")
    listener.close()


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
    listener = Listener(ListenerTls(authority.store("first"), None, None, "none"))
    assert listener.peer_names(client_context(authority))[0] == "first"
    listener.close()
