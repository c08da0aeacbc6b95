"""Settings of the Kafka listener's security: protocol, TLS files, principals."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headroom.config.types import Address, ListenAddress, Network, Port, Section

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class ListenerConfig(Section):
    """Security of a listener, and the ports that its clients see."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """Protocol of clients: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"""
    tls_certificate: Path | None = None
    """Certificate with its chain, PEM, or a PKCS12 key store; all tls_* files are read again when they change"""
    tls_key: Path | None = None
    """Private key without password, PEM, unless tls_certificate holds it"""
    tls_keystore_password_file: Path | None = None
    """File of the password of that key store"""
    tls_client_ca: Path | None = None
    """CA of client certificates, PEM or a PKCS12 trust store"""
    tls_truststore_password_file: Path | None = None
    """File of the password of that trust store"""
    tls_client_auth: Literal["none", "requested", "required"] = "none"
    """Client certificates (Kafka's ssl.client.auth)"""
    tls_principal_mapping_rules: str = "DEFAULT"
    """Principals of client certificates (Kafka's ssl.principal.mapping.rules)"""
    proxy_protocol: Literal["none", "v1", "v2"] = "none"
    """Version of the PROXY protocol with which a load balancer names the client's address: its connections begin with
    such a header"""
    proxy_networks: tuple[Network, ...] = ()
    """Networks of these load balancers; connections from others are taken as clients"""
    broker_names: str | None = None
    """TLS server names of brokers, all at the one port of `listen`: broker-{id}.gateway.example[:PORT]; {id} is the
    node id, PORT the one that clients connect to if it differs; none: each broker has its own port"""
    advertised_port: Port | None = None
    """Port at which clients find `listen`, where Docker, a NodePort or a load balancer leads from other ports to ours:
    broker N is advertised at advertised_port + 1 + N; none: ours"""
    upstream_certificates: Path | None = None
    """Directory of PRINCIPAL.pem: certificates with which the gateway connects to brokers for clients with
    certificates"""
    oauth_principal_claim: str = Field(default="sub", min_length=1)
    """Claim that names the principal (Kafka's sasl.oauthbearer.sub.claim.name)"""

    @property
    def tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def proxy_version(self) -> int:
        """Of the PROXY protocol."""
        return 1 if self.proxy_protocol == "v1" else 2

    @field_validator("tls_principal_mapping_rules")
    @classmethod
    def _are_rules(cls, rules: str) -> str:
        from telemetry.gateway.security.ssl_principal import (
            principal_mapper,  # imported late: slow, and only `serve` needs it
        )

        principal_mapper(rules)
        return rules

    @field_validator("broker_names")
    @classmethod
    def _are_names(cls, pattern: str | None) -> str | None:
        from telemetry.gateway.broker_ports import BrokerNames

        if pattern is not None:
            BrokerNames(pattern)
        return pattern

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.tls and not self.tls_certificate:
            raise ValueError(f"security_protocol {self.security_protocol} needs tls_certificate")
        if not self.tls and (self.tls_certificate or self.tls_key or self.tls_client_ca):
            raise ValueError(f"tls_* files are not used with security_protocol {self.security_protocol}")
        if self.upstream_certificates and (self.security_protocol != "SSL" or self.tls_client_auth == "none"):
            raise ValueError(
                "upstream_certificates belong to the principals of client certificates, which are not asked for"
            )
        if self.broker_names and not self.tls:
            raise ValueError("broker_names are TLS server names, and need security_protocol SSL or SASL_SSL")
        if (self.proxy_protocol != "none") != bool(self.proxy_networks):
            raise ValueError("proxy_protocol v1 or v2 needs proxy_networks, and these need it")
        if (self.tls_client_auth != "none") != (self.tls_client_ca is not None):
            raise ValueError("tls_client_auth requested or required and tls_client_ca need each other")
        return self


class FurtherListenerConfig(ListenerConfig):
    """A listener beside `listen`, for clients of another network."""

    listen: ListenAddress
    name: str = Field(default="", max_length=255)
    """What subscriptions match as `listener`; empty: the security protocol"""
    advertised_host: str | None = None
    """none: clients are sent to the address at which they found us"""

    @field_validator("listen")
    @classmethod
    def _has_a_port(cls, listen: Address) -> Address:
        if not listen.port:
            raise ValueError("a further listener needs a port of its own, 0 is none")
        return listen
