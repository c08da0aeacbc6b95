"""Builds TLS and SASL from settings: of the listener, of Headroom's own connections to brokers, and of clients'
upstream connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from cachetools import LRUCache

from headroom.config.listener import ListenerConfig
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from quota_metrics.kafka.bootstrap_servers import BootstrapError, BootstrapServer, check_protocol
from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.tls import RenewedContext
from telemetry.gateway.security.listener_security import (
    ListenerSecurity,
    ListenerTls,
    TlsFileError,
    UpstreamCertificateError,
)
from telemetry.gateway.security.ssl_principal import principal_mapper

if TYPE_CHECKING:
    from quota_metrics.kafka.authentication import Security

_MAX_KEPT = 1_000  # contexts of principals


def broker_security(config: ServeConfig) -> Security | None:
    """How Headroom itself connects to the brokers, by `command_config`; None means PLAINTEXT. Raises ServeError."""
    brokers = [BootstrapServer(**address.model_dump()) for address in (*config.upstream, *config.observe)]
    # Only where it is used: kio's classes take memory in each process.
    from quota_metrics.kafka.properties import protocol_of, read_properties, security

    try:
        properties = read_properties(config.command_config) if config.command_config else {}
        check_protocol(brokers, protocol_of(properties))
        return security(properties) if config.command_config else None
    except PropertiesError as exc:
        raise ServeError(f"command_config: {exc}") from exc
    except BootstrapError as exc:
        raise ServeError(str(exc)) from exc


def listener_security(config: ServeConfig, listener: ListenerConfig, name: str = "") -> ListenerSecurity:
    """Raises ServeError."""
    brokers = broker_security(config) if config.upstream else None
    protocol = listener.security_protocol
    if listener.sasl and not config.upstream:
        raise ServeError(
            f"listener.security_protocol {protocol}: SASL credentials cannot be checked without --upstream"
        )
    at_brokers = brokers is not None and brokers.sasl is not None
    if config.upstream and listener.sasl != at_brokers:
        raise ServeError(
            f"listener.security_protocol is {protocol}, but the brokers' (security.protocol in command_config) has "
            f"{'SASL' if at_brokers else 'no SASL'}: SASL passes through the gateway, so both have it or neither"
        )
    tls = listener_tls(listener)
    return ListenerSecurity(
        protocol=protocol,
        tls=tls.context if tls else None,
        upstream_tls=brokers.tls if brokers else None,
        upstream_tls_of=_upstream_certificates(config, listener),
        oauth_claim=listener.oauth_principal_claim,
        principal_of=principal_mapper(listener.tls_principal_mapping_rules),
        server_names=tls.server_names if tls else {},
        name=name,
    )


def listener_tls(listener: ListenerConfig) -> ListenerTls | None:
    """None means without TLS. Raises ServeError."""
    if not listener.tls or not listener.tls_certificate:
        return None
    try:
        return ListenerTls(
            listener.tls_certificate,
            listener.tls_key,
            listener.tls_client_ca,
            listener.tls_client_auth,
            keystore_password=listener.tls_keystore_password_file,
            truststore_password=listener.tls_truststore_password_file,
        )
    except TlsFileError as exc:
        raise ServeError(f"listener: {exc}") from exc


def _upstream_certificates(config: ServeConfig, listener: ListenerConfig) -> Callable[[str], ssl.SSLContext] | None:
    """By `listener.upstream_certificates`. Raises ServeError."""
    directory = listener.upstream_certificates
    if directory is None or not config.upstream:
        return None
    from quota_metrics.kafka.properties import read_properties

    properties = read_properties(config.command_config) if config.command_config else {}
    if properties.get("security.protocol", "").upper() != "SSL":
        raise ServeError("listener.upstream_certificates needs security.protocol=SSL in command_config")
    if not directory.is_dir():
        raise ServeError(f"listener.upstream_certificates: {directory} is no directory")
    return UpstreamCertificates(directory, properties).context_of


class UpstreamCertificates:
    """Certificates with which the gateway connects to brokers on behalf of its clients: a file per principal.

    `directory` has PRINCIPAL.pem with certificate, chain and key; characters other than letters, digits and `_.-~`
    are percent-encoded in its name. The other TLS settings are those of `properties` (a Kafka client's ssl.*)."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        self._directory = directory
        self._properties = {
            name: value
            for name, value in properties.items()
            if not name.startswith(("ssl.keystore.", "ssl.key.", "ssl.certificate."))
        }
        self._kept: LRUCache[str, tuple[int, ssl.SSLContext]] = LRUCache(_MAX_KEPT)  # when the file changed, context

    def context_of(self, principal: str) -> ssl.SSLContext:
        """Raises UpstreamCertificateError. A file that has changed is read again."""
        file = self._directory / f"{quote(principal, safe='')}.pem"
        try:
            changed_at = file.stat().st_mtime_ns
        except OSError as exc:
            raise UpstreamCertificateError(f"no certificate for a principal: {file}: {exc.strerror}") from exc
        kept = self._kept.get(principal)
        if kept is None or kept[0] != changed_at:
            own = {"ssl.keystore.location": str(file), "ssl.key.location": str(file)}
            try:
                kept = self._kept[principal] = changed_at, RenewedContext(self._properties | own)
            except PropertiesError as exc:
                raise UpstreamCertificateError(f"{file} cannot be used: {exc}") from exc
        return kept[1]
