"""SASL conversations by the examples of the RFCs and with dishonest servers; TLS by a client's properties."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from quota_metrics.kafka.authentication import OAuthBearer, Plain, SaslError, Scram
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.properties import security
from quota_metrics.kafka.tls import tls_context
from tests.kit.certificates import CertificateAuthority

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(username: str = "user") -> Scram:
    return Scram("sha256", username, "pencil", nonce=lambda: NONCE)


def test_scram_sha_256_matches_the_rfc_example() -> None:
    conversation = scram().conversation()
    assert next(conversation) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert conversation.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        conversation.send(SERVER_FINAL)


def test_scram_mechanism_name_escaping_and_nonces() -> None:
    assert Scram("sha512", "u", "p").name == "SCRAM-SHA-512"
    assert next(scram("a=b,c").conversation()) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"
    assert next(Scram("sha256", "u", "p").conversation()) != next(Scram("sha256", "u", "p").conversation())


@pytest.mark.parametrize(
    "messages",
    [
        [b""],
        [b"\xff"],
        [b"e=other-error"],
        [SERVER_FIRST.replace(b"rOprNGfwEbeRWgbNEkqO%", b"another%")],
        [b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"],
        [SERVER_FIRST.replace(b"i=4096", b"i=1")],
        [SERVER_FIRST.replace(b"i=4096", b"i=99999999999")],
        [SERVER_FIRST.replace(b"i=4096", b"i=x")],
        [SERVER_FIRST.replace(b"s=W22ZaJ0", b"s=*")],
        *([SERVER_FIRST, signature] for signature in (b"", b"v=", b"v=AAAA", b"e=invalid-proof", b"\xff")),
    ],
)
def test_scram_rejects_an_invalid_last_message_of_the_server(messages: list[bytes]) -> None:
    conversation = scram().conversation()
    next(conversation)
    for message in messages[:-1]:
        conversation.send(message)
    with pytest.raises(SaslError):
        conversation.send(messages[-1])


def test_plain_sends_credentials_in_one_message() -> None:
    conversation = Plain("alice", "pässword").conversation()
    assert next(conversation) == "\0alice\0pässword".encode()
    with pytest.raises(StopIteration):
        conversation.send(b"")


def test_oauthbearer_requests_a_token_per_conversation() -> None:
    tokens = iter(["one", "two"])
    mechanism = OAuthBearer(lambda: next(tokens))
    assert next(mechanism.conversation()) == b"n,,\x01auth=Bearer one\x01\x01"
    conversation = mechanism.conversation()
    assert next(conversation) == b"n,,\x01auth=Bearer two\x01\x01"
    assert conversation.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslError, match="invalid_token"):
        conversation.send(b"")


def test_secrets_are_not_in_repr() -> None:
    for mechanism in (Plain("alice", "secret"), Scram("sha256", "alice", "secret"), OAuthBearer(lambda: "secret")):
        assert "secret" not in repr(mechanism)


def test_jks_store_is_refused_with_conversion_advice(tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        with pytest.raises(PropertiesError, match=rf"{name}=.*trust.jks cannot be used: it is a JKS store; convert it"):
            security({"security.protocol": "SSL", name: str(store), "ssl.truststore.type": "JKS"})


def test_pkcs12_stores_are_loaded(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.issue("mine")
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.trust_store("trust")),
        "ssl.truststore.password": "trust",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.key_store("mine", "key")),
        "ssl.keystore.password": "key",
    }
    assert len(tls_context(properties).get_ca_certs()) == 1
    with pytest.raises(PropertiesError, match=r"mine\.p12 cannot be used: it is neither PEM nor PKCS12"):
        security(properties | {"ssl.keystore.password": "other"})
    with pytest.raises(PropertiesError, match=r"ca\.p12 cannot be used: it has no private key"):
        security(properties | {"ssl.keystore.location": str(tmp_path / "ca.p12"), "ssl.keystore.password": "trust"})


def test_trust_store_may_contain_unicode_comments(tmp_path: Path) -> None:
    store = tmp_path / "übergeordnet.pem"
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    pem = f"{begin}{Path(certifi.where()).read_text().split(begin)[1].split(end)[0]}{end}\n"
    store.write_text(f"# Zertifizierungsstelle für Köln\n{pem}\n# 認証局\n{pem}", "utf-8")
    assert len(tls_context({"ssl.truststore.location": str(store)}).get_ca_certs()) == 1
    assert len(tls_context({"ssl.truststore.certificates": store.read_text("utf-8")}).get_ca_certs()) == 1


def test_tls_verifies_names_and_certificates_by_default() -> None:
    def context(**more: str) -> ssl.SSLContext:
        return tls_context({key.replace("_", "."): value for key, value in more.items()})

    assert (context().check_hostname, context().verify_mode) == (True, ssl.CERT_REQUIRED)
    unnamed = context(ssl_endpoint_identification_algorithm="")
    assert (unnamed.check_hostname, unnamed.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert context(enable_ssl_certificate_verification="false").verify_mode == ssl.CERT_NONE


def test_versions_of_tls_are_limited() -> None:
    def limits(**more: str) -> tuple[int, int]:
        context = tls_context({f"ssl.{name.replace('_', '.')}": value for name, value in more.items()})
        return context.minimum_version, context.maximum_version

    version = ssl.TLSVersion
    assert limits(protocol="TLSv1.3", enabled_protocols="TLSv1.3,TLSv1.2") == (version.TLSv1_2, version.TLSv1_3)
    assert limits(enabled_protocols="TLSv1.3") == (version.TLSv1_3, version.TLSv1_3)
    assert limits(protocol="TLSv1.2")[1] == version.TLSv1_2
    assert limits(protocol="TLSv1.2", enabled_protocols="TLSv1.2,TLSv1.3")[1] == version.TLSv1_2
    assert limits()[1] == version.MAXIMUM_SUPPORTED


def revocations(authority: CertificateAuthority, *revoked: Path) -> Path:
    """The CA's list of the certificates that it has revoked."""
    ca = x509.load_pem_x509_certificate(authority.ca.read_bytes())
    key = load_pem_private_key(authority.ca.with_suffix(".key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(ca.subject, now - timedelta(days=1), now + timedelta(days=1))
    for certificate in revoked:
        serial_number = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder(serial_number, now - timedelta(hours=1)).build()
        builder = builder.add_revoked_certificate(entry)
    file = authority.ca.with_name("revoked.pem")
    file.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return file


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Raises ssl.SSLError of the client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [ours, theirs]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


def test_revoked_certificate_is_not_trusted(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("broker")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    properties = {"ssl.ca.location": str(authority.ca)}
    handshake(tls_context(properties), server)
    handshake(tls_context(properties | {"ssl.crl.location": str(revocations(authority))}), server)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        handshake(tls_context(properties | {"ssl.crl.location": str(revocations(authority, certificate))}), server)
