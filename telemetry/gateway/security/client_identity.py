"""The client of a connection, by facts of the connection itself: address, certificate, software, SASL. Sans-I/O.

The broker authenticates; `SaslSession` only reads which user it accepted, and until when. Sources:
SaslServerAuthenticator of Apache Kafka 4.3, KIP-43 (tokens as raw frames after SaslHandshake 0), KIP-152
(SaslAuthenticate), KIP-368 (session lifetime and re-authentication).

- Before the broker has accepted a client, and after its session has expired, only ApiVersions, SaslHandshake and
  SaslAuthenticate are forwarded.
- The user that a client claims becomes its principal with the broker's last, accepting response, never before.
- With a mechanism whose tokens cannot be read (GSSAPI), no telemetry before the broker answers an ordinary request.
- A delegation token authenticates its owner (KIP-48), who is unknown until `owner_of` returns the name.
- Tokens, passwords among them, are read and dropped; no message or log entry contains one.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import structlog

from exporters.model import MAX_SOFTWARE_CHARS, Connection
from quota_metrics.kafka.primitives import ProtocolError, Reader
from telemetry.gateway.security.sasl_tokens import OAUTHBEARER, READABLE, SCRAM, read_claim, recorded_principal
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.apis import (
    API_VERSIONS,
    APIS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
)
from telemetry.wire.frames import LENGTH_BYTES, request_body, response_body_at

log = structlog.get_logger(__name__)

SASL: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
RAW_TOKEN: Final = -1  # version of a token that is sent as a raw frame
_BEFORE: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
_TELEMETRY: Final = frozenset({GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY})
_SOFTWARE: Final = re.compile(  # ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?"
)


@lru_cache(maxsize=64)
def _warn_once(principal: str) -> None:
    log.warning("principals of a SASL mechanism cannot be read off the wire", recorded_as=principal)


class SaslSession:
    """The authentication of one connection.

    `claim`: as in sasl_tokens.read_claim. `owner_of`: id of a delegation token -> name of its owner; None: not known
    yet, ask again with the next request. `clock_s`: monotonic, as a broker's; a session has a duration, no date.
    """

    def __init__(self, claim: str, owner_of: Callable[[str], str | None], clock_s: Callable[[], float]) -> None:
        self.principal: str | None = None  # of the last authentication that the broker accepted
        self.raw = False  # the next frames of both sides are tokens
        self.unproven = False  # tokens cannot be read, and the broker has not answered an ordinary request yet
        self._claim = claim
        self._owner_of = owner_of
        self._clock_s = clock_s
        self._expires_at_s = 0.0  # 0: there is no authenticated session
        self._asked = ""  # the mechanism of a handshake that was not answered yet
        self._version = 0  # of that handshake
        self._mechanism = ""
        self._claimed: str | None = None
        self._claimed_token = ""
        self._authenticated_token = ""  # the delegation token of this session, while its owner is not known
        self._rounds = 0  # tokens of the client in this authentication
        self._waiting = False  # a handshake or token was not answered yet

    @property
    def is_open(self) -> bool:
        """Whether every request may pass now, and none needs `check`."""
        is_settled = not (self.unproven or self._waiting or self._authenticated_token)
        return is_settled and self._clock_s() < self._expires_at_s

    def check(self, api_key: int) -> None:
        """Raises ProtocolError when a request may not pass now."""
        if self._waiting:
            raise ProtocolError("cannot accept a request before the last step of the authentication is answered")
        if api_key in _BEFORE:
            return
        name = APIS[api_key].name
        if self._clock_s() >= self._expires_at_s:
            reason = "the client is not authenticated" if self.principal is None else "the session has expired"
            raise ProtocolError(f"cannot forward a {name} request: {reason}")
        if self.unproven and api_key in _TELEMETRY:
            raise ProtocolError(f"cannot answer {name}: the broker has not accepted the client's {self._mechanism} yet")
        if self._authenticated_token:
            self._resolve_owner()

    def read_request(self, api: Api, version: int, frame: bytes, client_id_end: int) -> None:
        """A SaslHandshake or SaslAuthenticate request, or a token that is a frame. Raises ProtocolError."""
        if self._waiting:
            raise ProtocolError("cannot accept a token before the previous one is answered")
        token = frame[LENGTH_BYTES:]
        if version != RAW_TOKEN:
            flexible = api.flexible(version)
            reader = Reader(request_body(frame, client_id_end, flexible=flexible))
            if api.key == SASL_HANDSHAKE:
                mechanism = reader.string()
                if version == 0 and mechanism not in READABLE:
                    raise ProtocolError("cannot follow this mechanism after SaslHandshake 0, only after version 1")
                self._asked, self._version = mechanism, version
            else:
                token = reader.raw(max(reader.uvarint() - 1 if flexible else reader.int32(), 0))
        if api.key != SASL_HANDSHAKE:
            if self._rounds == 0:
                self._claimed, self._claimed_token = read_claim(self._mechanism, token, self._claim)
            self._rounds += 1
        self._waiting = True

    def read_response(self, api: Api, version: int, frame: bytes) -> None:
        """The broker's response to such a request. Raises ProtocolError.

        SaslHandshake: error_code. SaslAuthenticate: error_code, error_message, auth_bytes, session_lifetime_ms (1+).
        """
        self._waiting = False
        if version == RAW_TOKEN:
            self._token_answered(frame[LENGTH_BYTES:], 0)
            return
        flexible = api.flexible(version)
        reader = Reader(frame, response_body_at(frame, tagged=flexible))
        if reader.int16() != 0:  # the broker closes the connection after this; until then nothing may pass
            self.raw = False
            self._claimed, self._claimed_token = None, ""
            self._expires_at_s = 0.0
        elif api.key == SASL_HANDSHAKE:
            self._mechanism, self._claimed, self._rounds = self._asked, None, 0
            self.raw = self._version == 0
        else:
            _ = reader.compact_nullable_string() if flexible else reader.nullable_string()
            token = reader.raw(max(reader.uvarint() - 1 if flexible else reader.int32(), 0))
            self._token_answered(token, reader.int64() if version >= 1 else 0)

    def _token_answered(self, token: bytes, lifetime_ms: int) -> None:
        """A token of the broker, which has not refused the client so far."""
        # A token that cannot be read may be the last of the authentication.
        is_last = True
        if self._mechanism in SCRAM:
            is_last = self._rounds >= 2 and token.startswith(b"v=")
        elif self._mechanism == OAUTHBEARER:
            is_last = not token  # else the reason why the broker refuses the client's token
        if is_last:
            self.raw = False
            principal = recorded_principal(self._claimed, self._mechanism)
            self._authenticated_token, self._claimed_token = self._claimed_token, ""
            self.unproven = self._mechanism not in READABLE and (self.unproven or self.principal is None)
            self.principal = principal
            self._expires_at_s = self._clock_s() + lifetime_ms / 1000 if lifetime_ms > 0 else math.inf
            if self._authenticated_token:
                self._resolve_owner()
            elif principal != self._claimed:
                _warn_once(principal)
            self._claimed = None

    def answered(self, api_key: int, body: bytes = b"") -> None:
        """The broker answered a request; an ordinary one proves that it accepted the client. So does ApiVersions after
        the tokens, to which it has an error before that (SaslServerAuthenticator)."""
        if api_key not in _BEFORE or (api_key == API_VERSIONS and body.startswith(b"\0\0")):
            self.unproven = False

    def _resolve_owner(self) -> None:
        owner = self._owner_of(self._authenticated_token)
        if owner is not None:
            self.principal = recorded_principal(owner, self._mechanism)
            self._authenticated_token = ""


class ClientIdentity:
    """The facts of a connection, and values derived from them once per change instead of once per request."""

    def __init__(self, facts: Connection, connection_id: str, sasl: SaslSession | None = None) -> None:
        self.sasl = sasl  # None: the listener has no SASL, and the principal of `facts` never changes
        self._connection_id = connection_id
        self.last_client_id = b""  # as it was sent
        self._client_id = ""
        self._caller: Caller | None = None
        self._know(facts)

    def client_id(self, text: bytes) -> str:
        """The client id of a request header; cached, because most connections only send one."""
        if text != self.last_client_id:
            self.last_client_id = text
            self._client_id = text.decode("utf-8", "replace")
        return self._client_id

    def caller(self, client_id: str) -> Caller:
        """Cached while client id and facts do not change."""
        caller = self._caller
        if caller is None or caller.client_id != client_id:
            self._caller = caller = Caller(self.facts, client_id, self._connection_id)
        return caller

    def note_software(self, body: bytes) -> None:
        """Stores the name and version of the last valid ApiVersions request (3+) of the connection, as Kafka does."""
        name, version = software_of(body)
        if name and version:
            name, version = name[:MAX_SOFTWARE_CHARS], version[:MAX_SOFTWARE_CHARS]
            self._know(dataclasses.replace(self.facts, software_name=name, software_version=version))

    def note_principal(self) -> None:
        if self.sasl is not None and self.sasl.principal not in (None, self.facts.principal):
            self._know(dataclasses.replace(self.facts, principal=self.sasl.principal))

    def _know(self, facts: Connection) -> None:
        self.facts = facts
        self.principal = facts.principal
        self.address = facts.source_address
        self.broker_id = facts.broker_id
        self._caller = None


def software_of(body: bytes) -> tuple[str, str]:
    """Name and version of the client software in an ApiVersions request (3+); both empty when either is invalid."""
    reader = Reader(body)
    name, version = reader.compact_string(), reader.compact_string()
    return (name, version) if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version) else ("", "")
