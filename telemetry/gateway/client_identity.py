"""The client of a connection, by facts of the connection itself. Sans-I/O."""

from __future__ import annotations

import dataclasses
from typing import Final

from exporters.model import Connection, ExchangeValues
from telemetry.gateway.exchanges import PendingRequest
from telemetry.gateway.request_heads import software_of
from telemetry.gateway.security.authentication import SaslSession
from telemetry.rules.client_instances import Caller

_MAX_SOFTWARE_CHARS: Final = 255


class ClientIdentity:
    """The facts of a connection, and values derived from them once per change instead of once per request."""

    __slots__ = (
        "_address",
        "_broker_id",
        "_caller",
        "_client_id",
        "_client_id_bytes",
        "_connection_id",
        "_principal",
        "facts",
        "sasl",
    )

    def __init__(self, facts: Connection, connection_id: str, sasl: SaslSession | None = None) -> None:
        self.sasl = sasl  # None: the listener has no SASL, and the principal of `facts` never changes
        self._connection_id = connection_id
        self._client_id_bytes = b""
        self._client_id = ""
        self._caller: Caller | None = None
        self._know(facts)

    def client_id(self, text: bytes) -> str:
        """The client id of a request header; cached, because most connections only send one."""
        if text != self._client_id_bytes:
            self._client_id_bytes = text
            self._client_id = text.decode("utf-8", "replace")
        return self._client_id

    @property
    def last_client_id(self) -> bytes:
        return self._client_id_bytes

    def caller(self, client_id: str | None) -> Caller:
        """Cached while client id and facts do not change."""
        caller = self._caller
        if caller is None or caller.client_id != client_id:
            self._caller = caller = Caller(self.facts, client_id, self._connection_id)
        return caller

    def note_software(self, body: bytes) -> None:
        """Stores the name and version of the last valid ApiVersions request (3+) of the connection, as Kafka does."""
        name, version = software_of(body)
        if name and version:
            name, version = name[:_MAX_SOFTWARE_CHARS], version[:_MAX_SOFTWARE_CHARS]
            self._know(dataclasses.replace(self.facts, software_name=name, software_version=version))

    def check(self, api_key: int, now_ms: int) -> None:
        """Raises ProtocolError when the authentication does not let a request pass now. The principal may be known from
        now on."""
        if self.sasl is not None:
            self.sasl.check(api_key, now_ms)
            self.note_principal()

    def note_principal(self) -> None:
        """Updates the principal after the broker answered a step of the authentication."""
        if self.sasl is not None and self.sasl.principal not in (None, self.facts.principal):
            self._know(dataclasses.replace(self.facts, principal=self.sasl.principal))

    def exchange(self, pending: PendingRequest, now_ms: int) -> ExchangeValues:
        """The exchange for the usage meter, after the broker's answer, or at once for a request without one
        (acks=0)."""
        return (
            self._principal,
            pending.client_id or "",
            self._address,
            self._broker_id,
            pending.api.key,
            pending.request_bytes,
            pending.response_bytes,
            pending.throttle_ms,
            now_ms,
        )

    def _know(self, facts: Connection) -> None:
        self.facts = facts
        self._principal = facts.principal
        self._address = facts.source_address
        self._broker_id = facts.broker_id
        self._caller = None
