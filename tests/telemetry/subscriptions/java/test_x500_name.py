"""Subjects of certificates as Java prints them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.x500_name import CertificateError, subject_name
from tests.kit.certificates import CertificateAuthority
from tests.oracle.certificates_oracle import certificate_of, run_principals, their_name


@pytest.fixture
def issued(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


def certificate(authority: CertificateAuthority, subject: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.issue("client", subject)[0].read_text())


@pytest.mark.java
@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("/C=DE/O=Acme, Inc/CN=alice", "CN=alice,O=Acme\\, Inc,C=DE"),
        ("/UID=u1/CN=a=b#c,d\\+e<f>;g\\\\h", "CN=a\\=b\\#c\\,d\\+e\\<f\\>\\;g\\\\h,UID=u1"),
        # An eIDAS certificate of a natural person.
        (
            "/C=DE/CN=Erika Mustermann/GN=Erika/SN=Mustermann/serialNumber=PNODE-123/title=Dr.",
            "2.5.4.12=#0c0344722e,2.5.4.5=#1309504e4f44452d313233,2.5.4.4=#0c0a4d75737465726d616e6e,"
            "2.5.4.42=#0c054572696b61,CN=Erika Mustermann,C=DE",
        ),
        ("/CN=alice/emailAddress=a@b", "1.2.840.113549.1.9.1=#1603614062,CN=alice"),
    ],
)
def test_subjects_of_issued_certificates(jvm: Jvm, issued: CertificateAuthority, subject: str, name: str) -> None:
    encoded = certificate(issued, subject)
    assert subject_name(encoded) == their_name(jvm, encoded) == name


@pytest.mark.java
def test_drawn_certificates_have_javas_names(jvm: Jvm) -> None:
    assert run_principals(jvm, 20_261_126, 400) == []


def test_certificate_without_a_subject_has_an_empty_name() -> None:
    assert subject_name(certificate_of(b"\x30\x00")) == ""


def test_damaged_certificates_raise_certificate_error(issued: CertificateAuthority) -> None:
    whole = certificate(issued, "/CN=alice/serialNumber=7")
    for cut in range(len(whole)):
        with pytest.raises(CertificateError):
            subject_name(whole[:cut])
    for junk in (b"\x30\x80", b"\x1f\x81\x00", b"\x30\x85\x00\x00\x00\x00\x00", whole + b"\x00\x00"):
        with pytest.raises(CertificateError):
            subject_name(junk)
    with pytest.raises(CertificateError):
        subject_name(certificate_of(bytes.fromhex("300a310830060602508013 00".replace(" ", ""))))
