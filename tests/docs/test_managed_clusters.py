"""The client properties of docs/managed-clusters.md: Headroom reads its own, and has a reason to refuse the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.properties import read_properties, security
from tests.kit.certificates import CertificateAuthority

PAGE = Path(__file__).parents[2] / "docs" / "managed-clusters.md"
BLOCKS = re.findall(r"^```properties\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
OWN = [block for block in BLOCKS if not block.startswith("# a Java client")]


def written(directory: Path, block: str) -> Path:
    """With the files that the block names."""
    authority = CertificateAuthority(directory)
    certificate, key = authority.issue("service")
    authority.trust_store("CA_PASSWORD")
    block = block.replace("ca.pem", str(authority.ca)).replace("ca.p12", str(authority.ca.with_suffix(".p12")))
    file = directory / "client.properties"
    file.write_text(block.replace("service.cert", str(certificate)).replace("service.key", str(key)))
    return file


@pytest.mark.parametrize("block", OWN)
def test_properties_of_the_page_are_headrooms(tmp_path: Path, block: str) -> None:
    how = security(read_properties(written(tmp_path, block)))
    assert how.tls is not None
    assert (how.sasl is not None) == ("SASL_SSL" in block)
    if how.sasl is not None:
        assert f"sasl.mechanism={how.sasl.name}\n" in block


def test_properties_of_other_clients_are_refused_by_name(tmp_path: Path) -> None:
    assert len(OWN) == len(BLOCKS) - 1 == 8
    (other,) = set(BLOCKS) - set(OWN)
    with pytest.raises(PropertiesError, match="IAMOAuthBearerLoginCallbackHandler has no effect here"):
        read_properties(written(tmp_path, other))
