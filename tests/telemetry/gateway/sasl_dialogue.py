"""A client and a broker at a listener with SASL."""

from __future__ import annotations

import struct
from collections.abc import Callable

from exporters.model import ANONYMOUS, UNKNOWN, Connection
from telemetry.gateway.connection import ConnectionLimits, ProxiedConnection
from telemetry.gateway.security.client_identity import SaslSession
from telemetry.receiver.receiver import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payers import Caller
from tests.telemetry.gateway.dialogue import request, response

FACTS = Connection("c", "SASL_PLAINTEXT", ANONYMOUS, "10.0.0.1", 4000, UNKNOWN, UNKNOWN, 7)
GET = request(71, 0, 70, bytes(16) + b"\x00")
PUSH = request(72, 0, 71, struct.pack(">16siBb", b"\x07" * 16, 9, 0, 4) + b"\x81\x02" + bytes(256) + b"\x00")


class PrincipalReceiver(TelemetryReceiver):
    """Answers telemetry requests with the principal that sends them."""

    def __init__(self) -> None:
        pass  # without rules and spool

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        return Answer(caller.connection.principal.encode(), after_flush=False, refusal=b"")

    def answer_push(self, request: PushRequest, payload: bytes, now_ms: int) -> Answer:
        return Answer(request.caller.connection.principal.encode(), after_flush=True, refusal=b"")

    def disconnected(self, connection_id: str) -> None:
        pass


class Dialogue:
    """A client and a broker at a listener with SASL. Asserts that everything but telemetry is forwarded unchanged."""

    def __init__(self, owner_of: Callable[[str], str | None] | None = None) -> None:
        self.now_ms = 1_000
        self.connection = ProxiedConnection(
            facts=FACTS,
            connection_id="one",
            receiver=PrincipalReceiver(),
            address_of=lambda node_id, host, port: (host, port),
            observe=lambda _: None,
            limits=ConnectionLimits(),
            sasl=SaslSession("sub", owner_of),
        )

    def client(self, data: bytes) -> bytes:
        self.connection.from_client(data, self.now_ms)
        out, self.connection.to_upstream = self.connection.to_upstream, b""
        return out

    def broker(self, data: bytes) -> None:
        self.connection.from_upstream(data, self.now_ms)
        out, self.connection.to_client = self.connection.to_client, b""
        assert out == data

    def passes(self, asked: bytes, reported: bytes) -> None:
        assert self.client(asked) == asked
        self.broker(reported)

    def handshake(self, mechanism: str, version: int = 1, code: int = 0) -> None:
        name = mechanism.encode()
        body = struct.pack(">h", len(name)) + name
        self.passes(request(17, version, 1, body), response(17, version, 1, struct.pack(">hi", code, 0)))

    def authenticate(
        self, token: bytes, answer: bytes = b"", *, version: int = 1, code: int = 0, lifetime_ms: int = 0
    ) -> None:
        if version >= 2:
            asked = request(36, version, 2, bytes([len(token) + 1]) + token + b"\x00")
            body = struct.pack(">h", code) + b"\x00" + bytes([len(answer) + 1]) + answer
            reported = response(36, version, 2, body + struct.pack(">q", lifetime_ms) + b"\x00")
        else:
            asked = request(36, version, 2, struct.pack(">i", len(token)) + token)
            body = struct.pack(">hhi", code, -1, len(answer)) + answer
            reported = response(36, version, 2, body + (struct.pack(">q", lifetime_ms) if version else b""))
        self.passes(asked, reported)

    def scram(self, user: str = "alice", version: int = 1, lifetime_ms: int = 0, extensions: str = "") -> None:
        self.handshake("SCRAM-SHA-256")
        self.authenticate(f"n,,n={user},r=abc{extensions}".encode(), b"r=abcdef,s=AAAA,i=4096", version=version)
        self.authenticate(b"c=biws,r=abcdef,p=AAAA", b"v=AAAA", version=version, lifetime_ms=lifetime_ms)

    def principal(self) -> str:
        """The principal that answers a GetTelemetrySubscriptions request."""
        assert self.client(GET) == b""
        out, self.connection.to_client = self.connection.to_client, b""
        return out[9:].decode()

    def push(self) -> str:
        assert self.client(PUSH) == b""
        self.connection.unflushed = False
        return self.connection.flushed(True)[9:].decode()
