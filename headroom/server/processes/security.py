"""Builds TLS and SASL from settings: of the listener, of Headroom's own connections to brokers, and of clients'
upstream connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.security.listener_tls import ListenerTls, TlsFileError
from telemetry.gateway.security.ssl_principal import principal_mapper

if TYPE_CHECKING:
    from quota_metrics.kafka.authentication import Security


def broker_security(config: ServeConfig) -> Security | None:
    """How Headroom itself connects to the brokers, by `command_config`; None means PLAINTEXT. Raises ServeError."""
    if config.command_config is None:
        return None
    # Only where it is used: kio's classes take memory in each process.
    from quota_metrics.kafka.errors import PropertiesError
    from quota_metrics.kafka.properties import read_properties, security

    try:
        return security(read_properties(config.command_config))
    except PropertiesError as exc:
        raise ServeError(f"command_config: {exc}") from exc


def listener_security(config: ServeConfig) -> ListenerSecurity:
    """Raises ServeError."""
    listener = config.listener
    brokers = broker_security(config) if config.upstream else None
    _check_sasl(config, brokers)
    tls = None
    if listener.tls and listener.tls_certificate and listener.tls_key:
        try:
            tls = ListenerTls(
                listener.tls_certificate, listener.tls_key, listener.tls_client_ca, listener.tls_client_auth
            )
        except TlsFileError as exc:
            raise ServeError(f"listener: {exc}") from exc
    return ListenerSecurity(
        protocol=listener.security_protocol,
        tls=tls.context if tls else None,
        upstream_tls=brokers.tls if brokers else None,
        oauth_claim=listener.oauth_principal_claim,
        principal_of=principal_mapper(listener.tls_principal_mapping_rules),
    )


def _check_sasl(config: ServeConfig, brokers: Security | None) -> None:
    """Raises unless clients and brokers both use SASL or neither does, because it passes through the gateway."""
    protocol = config.listener.security_protocol
    if config.listener.sasl and not config.upstream:
        raise ServeError(
            f"listener.security_protocol {protocol}: SASL credentials cannot be checked without --upstream"
        )
    at_brokers = brokers is not None and brokers.sasl is not None
    if config.upstream and config.listener.sasl != at_brokers:
        raise ServeError(
            f"listener.security_protocol is {protocol}, but the brokers' (security.protocol in command_config) has "
            f"{'SASL' if at_brokers else 'no SASL'}: SASL passes through the gateway, so both have it or neither"
        )
