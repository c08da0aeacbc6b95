"""Who is at the other end of a connection, as the connection itself shows it. Sans-I/O."""

from __future__ import annotations

import dataclasses

from exporters.model import Connection
from telemetry.gateway.exchanges import software_of
from telemetry.rules.client_instances import Caller

_MAX_SOFTWARE_CHARS = 255


class Sender:
    """The facts of a connection, and what is made of them once and not for each request."""

    __slots__ = ("_caller", "_client_id", "_client_id_bytes", "_connection_id", "facts")

    def __init__(self, facts: Connection, connection_id: str) -> None:
        self.facts = facts
        self._connection_id = connection_id
        self._client_id_bytes = b""
        self._client_id = ""
        self._caller: Caller | None = None

    def client_id(self, text: bytes) -> str:
        """From a request's header."""
        if text != self._client_id_bytes:  # one per connection, as good as always
            self._client_id_bytes = text
            self._client_id = text.decode("utf-8", "replace")
        return self._client_id

    def caller(self, client_id: str | None) -> Caller:
        """The same as long as nothing changes."""
        caller = self._caller
        if caller is None or caller.client_id != client_id:
            self._caller = caller = Caller(self.facts, client_id, self._connection_id)
        return caller

    def note_software(self, body: bytes) -> None:
        """Kafka keeps the name and version of the last valid ApiVersions request (3+) of a connection."""
        name, version = software_of(body)
        if name and version:
            self.facts = dataclasses.replace(
                self.facts, software_name=name[:_MAX_SOFTWARE_CHARS], software_version=version[:_MAX_SOFTWARE_CHARS]
            )
            self._caller = None
