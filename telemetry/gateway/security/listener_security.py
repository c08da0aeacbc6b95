"""How clients reach a listener and how the gateway reaches brokers on their behalf: TLS, SASL, principals. Sans-I/O."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from exporters.model import ANONYMOUS
from telemetry.gateway.security.authentication import SaslSession
from telemetry.gateway.security.ssl_principal import NoMatchingRuleError, distinguished_name
from telemetry.wire.errors import ProtocolError


class UpstreamCertificateError(OSError):
    """There is no usable certificate for a principal; the message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """`protocol`: Kafka's security protocol. `name`: the listener's in `Connection`; by default the protocol.

    `tls` and `upstream_tls`: contexts of the listener and of connections to brokers; None: none. `upstream_tls_of`:
    principal -> the context with that principal's own certificate, may raise UpstreamCertificateError.
    `oauth_claim`: as in sasl_tokens.claimed_user. `principal_of`: a certificate's distinguished name -> principal, may
    raise NoMatchingRuleError. `server_names`: the host names that clients asked for in their handshakes (SNI).
    """

    protocol: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None
    upstream_tls: ssl.SSLContext | None = None
    upstream_tls_of: Callable[[str], ssl.SSLContext] | None = None
    oauth_claim: str = "sub"
    principal_of: Callable[[str], str] = str
    server_names: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # by SSLObject
    name: str = ""

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def sasl_session(self, owner_of: Callable[[str], str | None]) -> SaslSession | None:
        """What follows the authentication of a new connection; None on a listener without SASL. `owner_of`: as in
        SaslSession."""
        return SaslSession(self.oauth_claim, owner_of) if self.sasl else None

    def principal(self, transport: asyncio.BaseTransport) -> str:
        """The principal of a connection before SASL: that of its certificate, or ANONYMOUS.

        Raises ProtocolError when no rule maps the certificate, or when there is no upstream certificate for it.
        """
        handshake = transport.get_extra_info("ssl_object")
        certificate: dict[str, Any] | None = handshake.getpeercert() if handshake is not None else None
        if not certificate or self.protocol != "SSL":
            return ANONYMOUS
        try:
            principal = self.principal_of(distinguished_name(certificate["subject"]))
            if self.upstream_tls_of is not None:
                self.upstream_tls_of(principal)
            return principal
        except (NoMatchingRuleError, UpstreamCertificateError) as exc:
            raise ProtocolError(str(exc)) from exc

    def server_name(self, transport: asyncio.BaseTransport) -> str | None:
        """The TLS server name that the client of a connection requested; None: it sent none."""
        return self.server_names.get(transport.get_extra_info("ssl_object"))

    def upstream(self, host: str, principal: str) -> dict[str, Any]:
        """Keyword arguments of loop.create_connection for a broker at `host`, whose certificate must name it.

        Raises UpstreamCertificateError when the client's principal has no certificate for brokers.
        """
        tls = self.upstream_tls
        if self.upstream_tls_of is not None and principal != ANONYMOUS:
            tls = self.upstream_tls_of(principal)
        return {} if tls is None else {"ssl": tls, "server_hostname": host}
