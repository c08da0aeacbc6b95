"""Settings of the Kafka listener's security: protocol, TLS files, principals."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class ListenerConfig(BaseModel):
    """`headroom serve --security-protocol ... --tls-certificate ...`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    security_protocol: SecurityProtocol = "PLAINTEXT"  # protocol of clients: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    # certificate with its chain, PEM; like the other two files, read again when it changes
    tls_certificate: Path | None = None
    tls_key: Path | None = None  # private key without password, PEM
    tls_client_ca: Path | None = None  # CA of client certificates, PEM
    tls_client_auth: Literal["none", "requested", "required"] = "none"  # client certificates (Kafka's ssl.client.auth)
    # principals of client certificates (Kafka's ssl.principal.mapping.rules)
    tls_principal_mapping_rules: str = "DEFAULT"
    # claim that names the principal (Kafka's sasl.oauthbearer.sub.claim.name)
    oauth_principal_claim: str = Field(default="sub", min_length=1)

    @property
    def tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @field_validator("tls_principal_mapping_rules")
    @classmethod
    def _are_rules(cls, rules: str) -> str:
        from telemetry.gateway.security.ssl_principal import (
            principal_mapper,  # imported late: slow, and only `serve` needs it
        )

        principal_mapper(rules)
        return rules

    @model_validator(mode="after")
    def _fits(self) -> ListenerConfig:
        if self.tls and not (self.tls_certificate and self.tls_key):
            raise ValueError(f"security_protocol {self.security_protocol} needs tls_certificate and tls_key")
        if not self.tls and (self.tls_certificate or self.tls_key or self.tls_client_ca):
            raise ValueError(f"tls_* files are not used with security_protocol {self.security_protocol}")
        if (self.tls_client_auth != "none") != (self.tls_client_ca is not None):
            raise ValueError("tls_client_auth requested or required and tls_client_ca need each other")
        return self
