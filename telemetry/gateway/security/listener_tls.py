"""The TLS context of a listener, built from files, and built again when they change."""

from __future__ import annotations

import ssl
from pathlib import Path
from weakref import WeakKeyDictionary

import structlog

log = structlog.get_logger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFileError(Exception):
    """Certificate, key or CA cannot be used; the message is one line."""


class ListenerTls:
    """PEM files: `certificate` (with its chain), `key`, `client_ca`; `client_auth` as Kafka's ssl.client.auth.

    `context` serves each handshake with the files as they are then. Files that cannot be used leave the last ones in
    force, with an entry in the log. The first time they raise TlsFileError.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None, client_auth: str) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._client_auth = CLIENT_AUTH[client_auth]
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
                log.info("the listener's TLS files were read again", certificate=str(self._certificate))
            except TlsFileError as exc:
                log.error("the listener's TLS files changed and cannot be used", error=str(exc))
        if self._current is not self.context:
            handshake.context = self._current

    def _changed_at(self) -> list[int]:
        files = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password="")
            if self._client_ca is not None:
                # From bytes, as the file may hold comments that are not ASCII.
                context.load_verify_locations(cadata=self._client_ca.read_bytes().decode("latin-1"))
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
            raise TlsFileError(f"cannot use {self._certificate}, {self._key}: {reason}") from exc
        context.verify_mode = self._client_auth
        return context
