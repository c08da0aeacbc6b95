"""A client's TLS context that follows the files it was made of: certificates are renewed without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from quota_metrics.kafka.errors import PropertiesError
from quota_metrics.kafka.tls import FILE_PROPERTIES, tls_context

log = structlog.get_logger(__name__)


class RenewedContext(ssl.SSLContext):
    """Each connection is made by the files as they are at its beginning; open connections keep what they have.

    Files that cannot be used leave the last ones in force, with an entry in the log. The first time they raise
    PropertiesError. This object is what event loops accept as a context; `_current` makes the connections.
    """

    _current: ssl.SSLContext

    def __new__(cls, properties: Mapping[str, str]) -> RenewedContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = dict(properties)
        self._files = [Path(properties[name]) for name in FILE_PROPERTIES if properties.get(name)]
        self._seen = self._changed_at()
        self._current = tls_context(properties)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Called by event loops for each connection."""
        return self._newest().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """The same for blocking clients."""
        return self._newest().wrap_socket(*arguments, **options)

    def _newest(self) -> ssl.SSLContext:
        changed_at = self._changed_at()
        if changed_at != self._seen:
            self._seen = changed_at
            try:
                self._current = tls_context(self._properties)
                log.info("the TLS files for connections to brokers were read again")
            except PropertiesError as exc:
                log.error("the TLS files for connections to brokers changed and cannot be used", error=str(exc))
        return self._current

    def _changed_at(self) -> list[int]:
        return [_changed_at(file) for file in self._files]


def _changed_at(file: Path) -> int:
    """In nanoseconds; 0 when it is not there, as for a moment while it is replaced."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
