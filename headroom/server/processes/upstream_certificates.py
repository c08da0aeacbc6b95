"""Certificates with which the gateway connects to brokers on behalf of its clients: a file per principal."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from cachetools import LRUCache

from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.renewed_tls import RenewedContext
from telemetry.gateway.security.listener_security import UpstreamCertificateError

_MAX_KEPT = 1_000


class UpstreamCertificates:
    """`directory` has PRINCIPAL.pem with certificate, chain and key; characters other than letters, digits and `_.-~`
    are percent-encoded in its name. The other TLS settings are those of `properties` (a Kafka client's ssl.*)."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        self._directory = directory
        self._properties = {
            name: value for name, value in properties.items() if not name.startswith(("ssl.keystore.", "ssl.key."))
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
            kept = self._kept[principal] = changed_at, self._load(file)
        return kept[1]

    def _load(self, file: Path) -> ssl.SSLContext:
        own = {"ssl.keystore.location": str(file), "ssl.key.location": str(file)}
        try:
            return RenewedContext(self._properties | own)
        except PropertiesError as exc:
            raise UpstreamCertificateError(f"{file} cannot be used: {exc}") from exc
