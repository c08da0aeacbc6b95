"""How clients reach a listener and how the gateway reaches brokers on their behalf: TLS, SASL, principals. Sans-I/O."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Callable
from typing import Any

from exporters.model import ANONYMOUS
from telemetry.gateway.security.authentication import SaslSession
from telemetry.gateway.security.ssl_principal import NoMatchingRuleError, distinguished_name
from telemetry.wire.errors import ProtocolError


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """`protocol`: Kafka's security protocol, which is also the listener's name in recorded rows.

    `tls` and `upstream_tls`: contexts of the listener and of connections to brokers; None: none. `oauth_claim`: as in
    sasl_tokens.claimed_user. `principal_of`: a certificate's distinguished name -> principal, may raise
    NoMatchingRuleError.
    """

    protocol: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None
    upstream_tls: ssl.SSLContext | None = None
    oauth_claim: str = "sub"
    principal_of: Callable[[str], str] = str

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def sasl_session(self) -> SaslSession | None:
        """What follows the authentication of a new connection; None on a listener without SASL."""
        return SaslSession(self.oauth_claim) if self.sasl else None

    def principal(self, transport: asyncio.BaseTransport) -> str:
        """The principal of a connection before SASL: that of its certificate, or ANONYMOUS.

        Raises ProtocolError when no rule maps the certificate.
        """
        handshake = transport.get_extra_info("ssl_object")
        certificate: dict[str, Any] | None = handshake.getpeercert() if handshake is not None else None
        if not certificate or self.protocol != "SSL":
            return ANONYMOUS
        try:
            return self.principal_of(distinguished_name(certificate["subject"]))
        except NoMatchingRuleError as exc:
            raise ProtocolError(str(exc)) from exc

    def upstream(self, host: str) -> dict[str, Any]:
        """Keyword arguments of loop.create_connection for a broker at `host`, whose certificate must name it."""
        return {} if self.upstream_tls is None else {"ssl": self.upstream_tls, "server_hostname": host}
