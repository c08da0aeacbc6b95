"""Authenticates to a broker by TLS and SASL."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from quota_metrics.kafka.errors import ClusterError, error_name, one_line
from quota_metrics.kafka.frames import NegotiatedRequest
from quota_metrics.kafka.sasl import Conversation, Mechanism, SaslError

UNSUPPORTED_SASL_MECHANISM = 33
_HANDSHAKE, _AUTHENTICATE = 17, 36
_LIFETIME_USED = 0.85  # of a session's lifetime; Java's clients re-authenticate between 85 and 95 % of it


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
    """Runs the SASL conversation (KIP-152) and returns for how many seconds the connection may be used.

    Raises ClusterError, with the broker's reason if it sends one.
    """
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
