"""ssl.crl.location: a broker whose certificate its CA has revoked is not trusted."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from quota_metrics.kafka.tls import tls_context
from tests.kit.certificates import CertificateAuthority


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
