"""A certificate for each principal: which file is used, and when it is read."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from headroom.server.processes.upstream_certificates import UpstreamCertificates
from telemetry.gateway.security.listener_security import UpstreamCertificateError
from tests.kit.certificates import CertificateAuthority

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
