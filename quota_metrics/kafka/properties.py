"""Reads the security settings of a Kafka client's properties file (--command-config)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.client_config.bootstrap_servers import PROTOCOLS
from quota_metrics.kafka.client_config.jaas import JaasError, parse_jaas
from quota_metrics.kafka.client_config.java_properties import decode_properties
from quota_metrics.kafka.client_config.names import misspelled, without_effect
from quota_metrics.kafka.client_config.oauthbearer import oauthbearer
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.renewed_tls import RenewedContext
from quota_metrics.kafka.sasl import Mechanism, Plain, Scram

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_NAMES_THE_HOST = {
    "AWS_MSK_IAM": "signs the name of the host that it connects to, so its clients cannot pass a gateway: use"
    " OAUTHBEARER with AWS's signer, or SCRAM (docs/managed-clusters.md)",
}


def read_properties(path: Path) -> dict[str, str]:
    """The entries of a file. Raises PropertiesError when it cannot be read, and when a line of it would have no
    effect by mistake."""
    try:
        entries = decode_properties(path.read_bytes())
    except OSError as exc:
        raise PropertiesError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise PropertiesError(f"{path} is not a properties file: {exc}") from exc
    mechanism = entries.get("sasl.mechanism", "")
    if why := _NAMES_THE_HOST.get(mechanism.upper()):
        raise PropertiesError(f"sasl.mechanism={mechanism} {why}")
    if faults := [*misspelled(entries), *without_effect(entries)]:
        raise PropertiesError(f"{path}: {'; '.join(faults)}")
    return entries


def security(properties: Mapping[str, str]) -> Security:
    """The TLS and SASL settings; other properties are ignored. Raises PropertiesError."""
    protocol = protocol_of(properties)
    return Security(
        tls=RenewedContext(properties) if protocol.endswith("SSL") else None,
        sasl=_read_mechanism(properties) if protocol.startswith("SASL_") else None,
    )


def protocol_of(properties: Mapping[str, str]) -> str:
    """Raises PropertiesError."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise PropertiesError(f"security.protocol={protocol} is not one of {', '.join(PROTOCOLS)}")
    return protocol


def _read_mechanism(properties: Mapping[str, str]) -> Mechanism:
    name = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
    jaas = properties.get("sasl.jaas.config", "")
    try:
        login = parse_jaas(jaas).options if jaas else {}
    except JaasError as exc:
        raise PropertiesError(f"sasl.jaas.config cannot be used: {exc}") from exc
    if name not in _MECHANISMS:
        raise PropertiesError(f"sasl.mechanism={name or '(none)'} is not one of {', '.join(_MECHANISMS)}")
    if name == "OAUTHBEARER":
        return oauthbearer(properties, login)
    username = login.get("username", properties.get("sasl.username", ""))
    password = login.get("password", properties.get("sasl.password", ""))
    if not username or not password:
        raise PropertiesError(f"{name} needs a username and password, by sasl.jaas.config or sasl.username")
    if name == "PLAIN":
        return Plain(username, password)
    digest = "sha" + name.removeprefix("SCRAM-SHA-")
    return Scram(digest, username, password, is_token=login.get("tokenauth", "").lower() == "true")
