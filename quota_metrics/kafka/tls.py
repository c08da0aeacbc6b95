"""TLS by a Kafka client's properties (ssl.*, as named by Java and librdkafka). PEM only: Python cannot read JKS."""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from quota_metrics.kafka.errors import PropertiesError

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """A client's context. Without a trust store it trusts the system's certificates. Raises PropertiesError."""
    trusted = properties.get("ssl.truststore.certificates") or properties.get("ssl.ca.pem")
    if not trusted:
        trusted = _pem(properties, "ssl.truststore.location", "ssl.ca.location")
    trusted = _blocks(trusted)
    try:
        context = ssl.create_default_context(cadata=trusted)
    except (ssl.SSLError, ValueError) as exc:
        raise PropertiesError(f"the trusted certificates cannot be read: {exc}") from exc
    _identify(context, properties)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _identify(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Loads the client certificate and key, if configured: mutual TLS."""
    chain = properties.get("ssl.keystore.certificate.chain") or properties.get("ssl.certificate.pem")
    if not chain:
        chain = _pem(properties, "ssl.keystore.location", "ssl.certificate.location")
    if not chain:
        return
    key = properties.get("ssl.keystore.key") or properties.get("ssl.key.pem") or _pem(properties, "ssl.key.location")
    # Python reads a key from files only. An empty password keeps OpenSSL from asking for one on the terminal.
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="utf-8") as both:
        both.write(f"{_blocks(chain)}\n{_blocks(key) or ''}")
        both.flush()
        try:
            context.load_cert_chain(both.name, password=properties.get("ssl.key.password", ""))
        except (ssl.SSLError, ValueError) as exc:
            raise PropertiesError(f"the client certificate and key cannot be used: {exc}") from exc


def _pem(properties: Mapping[str, str], *names: str) -> str | None:
    """The content of the file named by one of the properties."""
    for name in names:
        location = properties.get(name)
        if location:
            try:
                content = Path(location).read_bytes()
            except OSError as exc:
                raise PropertiesError(f"{name}={location} cannot be read: {exc.strerror}") from exc
            if b"-----BEGIN " not in content:
                raise PropertiesError(f"{name}={location} is not PEM; a JKS or PKCS12 store has to be converted")
            return content.decode("latin-1")
    return None


def _blocks(text: str | None) -> str | None:
    """The PEM blocks without the text around them, because Python refuses non-ASCII comments."""
    return "\n".join(block[0] for block in _BLOCK.finditer(text)) or text if text else None
