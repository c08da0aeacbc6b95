"""Authenticates to a broker by TLS and SASL.

SASL client mechanisms are generators of the client's next message for the server's last: PLAIN (RFC 4616),
SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628), each as in Kafka's brokers.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import secrets
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from quota_metrics.kafka.errors import ClusterError, error_name, one_line
from quota_metrics.kafka.frames import NegotiatedRequest

UNSUPPORTED_SASL_MECHANISM = 33
_HANDSHAKE, _AUTHENTICATE = 17, 36
_LIFETIME_USED = 0.85  # of a session's lifetime; Java's clients re-authenticate between 85 and 95 % of it

# Yields messages to send, receives the responses, and returns when authentication is complete. Raises SaslError.
Conversation: TypeAlias = Generator[bytes, bytes, None]

# Kafka's brokers accept 4096 to 16384; the upper bound limits the CPU time that a malicious broker can cause.
_MIN_ITERATIONS, _MAX_ITERATIONS = 4096, 1_000_000


class SaslError(Exception):
    """The server's message violates the mechanism."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Sends the password in clear text; use only over TLS."""

    name: ClassVar = "PLAIN"
    username: str
    password: str = field(repr=False)

    def conversation(self) -> Conversation:
        yield f"\0{self.username}\0{self.password}".encode()


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """`token` is called for each connection and returns a JWT. `extensions` go with it, as what names the cluster at a
    cloud's brokers."""

    name: ClassVar = "OAUTHBEARER"
    token: Callable[[], str] = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    def conversation(self) -> Conversation:
        pairs = "".join(f"\x01{name}={value}" for name, value in self.extensions.items())
        refusal = yield f"n,,\x01auth=Bearer {self.token()}{pairs}\x01\x01".encode()
        if refusal:  # JSON with the reason; the broker ends the exchange after the client's 0x01
            yield b"\x01"
            raise SaslError(f"the token was refused: {refusal[:500].decode('utf-8', 'replace')}")


def salted_password(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    """As ScramFormatter.saltedPassword: Hi of RFC 5802, without SASLprep."""
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


@dataclass(frozen=True, slots=True)
class Scram:
    """`digest` is sha256 or sha512. The broker must prove that it knows the password, too. `is_token`: name and
    password are those of a delegation token."""

    digest: str
    username: str
    password: str = field(repr=False)
    is_token: bool = False
    nonce: Callable[[], str] = field(default=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def name(self) -> str:
        return f"SCRAM-SHA-{self.digest.removeprefix('sha')}"

    def conversation(self) -> Conversation:
        nonce = self.nonce()
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        first_bare = f"n={name},r={nonce}{',tokenauth=true' if self.is_token else ''}"
        server_first = _text((yield f"n,,{first_bare}".encode()))
        salt, iterations, full_nonce = _challenge(server_first, nonce)
        without_proof = f"c=biws,r={full_nonce}"  # biws: base64 of "n,,"
        message = f"{first_bare},{server_first},{without_proof}".encode()
        salted = salted_password(self.digest, self.password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self.digest, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
        verifier = _attributes(_text(server_final)).get("v", "")
        expected = base64.b64encode(self._hmac(self._hmac(salted, b"Server Key"), message)).decode()
        if not hmac.compare_digest(verifier.encode(), expected.encode()):
            raise SaslError("the broker did not prove that it knows the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.digest)


def _challenge(server_first: str, nonce: str) -> tuple[bytes, int, str]:
    """Salt, iterations and complete nonce of the server's first message."""
    attributes = _attributes(server_first)
    try:
        salt = base64.b64decode(attributes["s"], validate=True)
        iterations = int(attributes["i"])
        full_nonce = attributes["r"]
    except (KeyError, ValueError, binascii.Error) as exc:
        raise SaslError(f"the broker's challenge cannot be read: {server_first[:200]!r}") from exc
    if not full_nonce.startswith(nonce) or full_nonce == nonce:
        raise SaslError("the broker's nonce does not begin with the client's")
    if not _MIN_ITERATIONS <= iterations <= _MAX_ITERATIONS:
        raise SaslError(f"{iterations} iterations, not from {_MIN_ITERATIONS} to {_MAX_ITERATIONS}")
    return salt, iterations, full_nonce


def _attributes(message: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as exc:
        raise SaslError(f"the broker's message of {len(message)} bytes is not text") from exc


# A conversation may block: on a token source, or on the CPU time of a hash.
Mechanism: TypeAlias = Plain | OAuthBearer | Scram


@dataclass(frozen=True, slots=True)
class Security:
    """PLAINTEXT when both are None; `tls` alone is SSL (mutual if the context has a certificate)."""

    tls: ssl.SSLContext | None = None
    sasl: Mechanism | None = None


def sasl_handshake(mechanism: str) -> NegotiatedRequest:
    """SaslHandshake, from version 1 on: after one of version 0 tokens have no header (KIP-152)."""
    return NegotiatedRequest(_HANDSHAKE, {"mechanism": mechanism}, least=1)


async def authenticate(
    mechanism: Mechanism, exchange: Callable[[NegotiatedRequest], Awaitable[Any]], peer: str
) -> float:
    """Runs the SASL conversation (KIP-152) and returns for how many seconds the connection may be used. Raises
    ClusterError, with the broker's reason if it sends one."""
    handshake = await exchange(sasl_handshake(mechanism.name))
    if handshake.error_code == UNSUPPORTED_SASL_MECHANISM:
        offered = one_line(", ".join(handshake.mechanisms)) or "nothing"
        raise ClusterError(f"{peer} does not offer {mechanism.name}: it offers {offered}")
    _check(handshake.error_code, None, mechanism, peer)
    conversation = mechanism.conversation()
    lifetime_ms = 0
    said: bytes | None = None
    while True:
        saying = await asyncio.to_thread(_continue, conversation, said, peer)
        if saying is None:
            return lifetime_ms / 1000 * _LIFETIME_USED if lifetime_ms > 0 else math.inf
        answer = await exchange(NegotiatedRequest(_AUTHENTICATE, {"auth_bytes": saying}))
        _check(answer.error_code, answer.error_message, mechanism, peer)
        said = answer.auth_bytes
        if (lifetime := getattr(answer, "session_lifetime", None)) is not None:  # from version 1 on
            lifetime_ms = int(lifetime.total_seconds() * 1000)


def _check(code: int, message: str | None, mechanism: Mechanism, peer: str) -> None:
    if code != 0:
        reason = error_name(code) if not message else one_line(message)
        raise ClusterError(f"{peer} did not accept the {mechanism.name} credentials: {reason}")


def _continue(conversation: Conversation, said: bytes | None, peer: str) -> bytes | None:
    """The client's next message; None when the conversation is complete. May block."""
    try:
        return next(conversation) if said is None else conversation.send(said)
    except StopIteration:
        return None
    except SaslError as exc:
        raise ClusterError(f"authentication with {peer} failed: {one_line(str(exc))}") from exc
