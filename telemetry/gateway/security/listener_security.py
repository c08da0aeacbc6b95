"""How clients reach a listener and how the gateway reaches brokers on their behalf: TLS, SASL, principals.

The TLS context of a listener is built from files, and built again when they change.
"""

import asyncio
import dataclasses
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import structlog

from exporters.key_store import KeyStoreError, is_pem, load_key, password_of, read_pkcs12
from exporters.model import ANONYMOUS
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.security.ssl_principal import NoMatchingRuleError
from telemetry.subscriptions.java.x500_name import CertificateError, subject_name

log = structlog.get_logger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class UpstreamCertificateError(OSError):
    """There is no usable certificate for a principal; the message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """`protocol`: Kafka's security protocol. `name`: the listener's in `Connection`; by default the protocol.

    `tls` and `upstream_tls`: contexts of the listener and of connections to brokers; None: none. `upstream_tls_of`:
    principal -> the context with that principal's own certificate, may raise UpstreamCertificateError.
    `oauth_claim`: as in sasl_tokens.read_claim. `principal_of`: a certificate's distinguished name -> principal, may
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

    def principal(self, transport: asyncio.BaseTransport) -> str:
        """The principal of a connection before SASL: that of its certificate, or ANONYMOUS.

        Raises ProtocolError when no rule maps the certificate, or when there is no upstream certificate for it.
        """
        handshake = transport.get_extra_info("ssl_object")
        certificate: bytes | None = handshake.getpeercert(True) if handshake is not None else None
        if not certificate or self.protocol != "SSL":
            return ANONYMOUS
        try:
            principal = self.principal_of(subject_name(certificate))
            if self.upstream_tls_of is not None:
                self.upstream_tls_of(principal)
            return principal
        except (NoMatchingRuleError, UpstreamCertificateError, CertificateError) as exc:
            raise ProtocolError(str(exc)) from exc

    def upstream(self, host: str, principal: str) -> dict[str, Any]:
        """Keyword arguments of loop.create_connection for a broker at `host`, whose certificate must name it.

        Raises UpstreamCertificateError when the client's principal has no certificate for brokers.
        """
        tls = self.upstream_tls
        if self.upstream_tls_of is not None and principal != ANONYMOUS:
            tls = self.upstream_tls_of(principal)
        return {} if tls is None else {"ssl": tls, "server_hostname": host}


class DirectSslObject(ssl.SSLObject):
    """Its methods for bytes are those of the C object that SSLObject wraps, without a Python frame for each call."""

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **named: Any) -> Self:
        made: Self = super()._create(incoming, outgoing, *arguments, **named)  # type: ignore[misc] # not in typeshed
        direct = made._sslobj  # type: ignore[attr-defined] # not in typeshed
        vars(made).update(read=direct.read, write=direct.write, pending=direct.pending, _outgoing=outgoing)
        return made

    def do_handshake(self) -> None:
        """An error has the alert for the peer as `alert`, because event loops do not send it (python/cpython#98078)."""
        try:
            super().do_handshake()
        except ssl.SSLError as exc:
            if not isinstance(exc, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
                vars(exc)["alert"] = vars(self)["_outgoing"].read()
            raise


class TlsFileError(Exception):
    """Certificate, key or CA cannot be used; the message is one line."""


@dataclasses.dataclass(eq=False)
class ListenerTls:
    """The TLS context of a listener, which follows its files.

    `certificate` is a PEM file with its chain, and `key` the file of its key, None if both are in one file. Or
    `certificate` is a PKCS12 key store, which the password in the file `keystore_password` opens. `client_ca`: PEM, or
    a PKCS12 trust store with `truststore_password`. `client_auth` as Kafka's ssl.client.auth.

    `context` serves each handshake with the files as they are then. Files that cannot be used leave the last ones in
    force, with an entry in the log. The first time they raise TlsFileError.
    """

    certificate: Path
    key: Path | None
    client_ca: Path | None
    client_auth: str
    keystore_password: Path | None = None
    truststore_password: Path | None = None

    def __post_init__(self) -> None:
        named = (self.certificate, self.key, self.client_ca, self.keystore_password, self.truststore_password)
        self._files = [file for file in named if file is not None]
        self.server_names: WeakKeyDictionary[ssl.SSLSocket | ssl.SSLObject, str] = WeakKeyDictionary()  # by connection
        self._seen = self._changed_at()
        self.context = self._current = self._load()
        self.context.sni_callback = self._begin_handshake  # called for each handshake, also without a server name

    def _begin_handshake(self, handshake: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is not None:
            self.server_names[handshake] = name
        changed_at = self._changed_at()
        if changed_at != self._seen:
            self._seen = changed_at
            try:
                self._current = self._load()
                log.info("the listener's TLS files were read again", certificate=str(self.certificate))
            except TlsFileError as exc:
                log.error("the listener's TLS files changed and cannot be used", error=str(exc))
        if self._current is not self.context:
            handshake.context = self._current

    def _changed_at(self) -> list[int]:
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in self._files]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        file = self.certificate
        try:
            content = b"" if self.key else file.read_bytes()
            if content and not is_pem(content):
                load_key(context, read_pkcs12(content, password_of(self.keystore_password)))
            elif content and b"PRIVATE KEY-----" not in content:
                raise KeyStoreError("it has no private key")
            else:
                context.load_cert_chain(file, self.key, password="")
            if self.client_ca is not None:
                file = self.client_ca
                content = file.read_bytes()
                if is_pem(content):
                    trusted = content.decode("latin-1")  # its comments need not be ASCII
                else:
                    trusted = read_pkcs12(content, password_of(self.truststore_password)).trusted
                context.load_verify_locations(cadata=trusted)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError, KeyStoreError a ValueError
            reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
            key = f", {self.key}" if self.key and file is self.certificate else ""
            raise TlsFileError(f"cannot use {file}{key}: {reason}") from exc
        context.verify_mode = CLIENT_AUTH[self.client_auth]
        return context
