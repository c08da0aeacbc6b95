"""Both ends of a proxied connection, and frames of requests and responses for it."""

import struct
from collections.abc import Callable, Mapping

from exporters.model import ANONYMOUS, UNKNOWN, Connection, Exchange
from telemetry.gateway.connection import ConnectionLimits, ProxiedConnection
from telemetry.gateway.responses import LocalAnswer
from telemetry.gateway.security.client_identity import SaslSession
from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.apis import APIS

PUSH = struct.pack(">16siBb", b"\x07" * 16, 9, 0, 4) + b"\x05push\x00"
FACTS = Connection("c", "PLAINTEXT", ANONYMOUS, "10.0.0.1", 4000, UNKNOWN, UNKNOWN, 7)


class ScriptedReceiver(TelemetryReceiver):
    """Answers 71 at once and 72 after a flush, with bytes that identify the request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bytes, str | None]] = []
        self.gone: list[str] = []
        self.client = FACTS  # that sent the last request

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        self.asked.append(("get", 71, body, caller.client_id))
        self.client = caller.connection
        return Answer(body=b"answer-71")

    def answer_push(self, request: PushRequest, payload: bytes | None, now_ms: int) -> Answer:
        if payload is None:
            self.asked.append(("oversize", 72, request.client_instance_id, request.caller.client_id))
            return Answer(body=b"too-large")
        self.asked.append(("push", 72, payload, request.caller.client_id))
        self.client = request.caller.connection
        return Answer(body=b"answer-72", after_flush=True, refusal=b"come-back")

    def disconnected(self, connection_id: str) -> None:
        self.gone.append(connection_id)


class Both:
    """The connection with its two streams recorded."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        local: Mapping[int, LocalAnswer] | None = None,
        sasl: SaslSession | None = None,
        receiver: TelemetryReceiver | None = None,
    ) -> None:
        self.now_ms = 6
        self.receiver = ScriptedReceiver()
        self.seen: list[Exchange] = []
        self.connection = ProxiedConnection(
            facts=FACTS,
            connection_id="one",
            receiver=receiver or self.receiver,
            address_of=lambda node_id, host, port: ("gw", 20_000 + node_id),
            observe=lambda values: self.seen.append(Exchange(*values)),
            limits=limits or ConnectionLimits(),
            local=local,
            sasl=sasl,
        )

    def client(self, data: bytes) -> bytes:
        self.connection.from_client(data, self.now_ms)
        return self.take_upstream()

    def broker(self, data: bytes) -> bytes:
        self.connection.from_upstream(data, self.now_ms)
        return self.take_client()

    def take_upstream(self) -> bytes:
        out, self.connection.to_upstream = self.connection.to_upstream, b""
        return out

    def take_client(self) -> bytes:
        out, self.connection.to_client = self.connection.to_client, b""
        return out

    def flush(self, ok: bool = True) -> bytes:
        assert self.connection.unflushed
        self.connection.unflushed = False
        answers = self.connection.flushed(ok)
        if self.connection.response_waits:
            self.connection.from_upstream(b"", self.now_ms)
        return answers + self.take_client()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: int, version: int, correlation: int, body: bytes = b"", client_id: str | None = "app") -> bytes:
    encoded = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation, -1 if encoded is None else len(encoded)) + (encoded or b"")
    tags = b"\x00" if APIS[key].flexible(version) or (key == 18 and version >= 3) else b""
    return framed(head + tags + body)


def response(key: int, version: int, correlation: int, body: bytes = b"") -> bytes:
    tags = b"\x00" if APIS[key].flexible(version) and key != 18 else b""
    return framed(struct.pack(">i", correlation) + tags + body)


def produce(version: int, correlation: int, acks: int, transactional_id: bytes = b"") -> bytes:
    tid = b""
    if version >= 9:
        tid = bytes([len(transactional_id) + 1]) + transactional_id
    elif version >= 3:
        tid = struct.pack(">h", len(transactional_id)) + transactional_id
    return request(0, version, correlation, tid + struct.pack(">h", acks) + b"records")


def produced(version: int, correlation: int, throttle_ms: int) -> bytes:
    if version >= 9:
        return response(0, version, correlation, b"\x01" + struct.pack(">i", throttle_ms) + b"\x00")
    return response(0, version, correlation, struct.pack(">ii", 0, throttle_ms))


class SaslDialogue(Both):
    """At a listener with SASL. Asserts that everything but telemetry is forwarded unchanged."""

    def __init__(self, owner_of: Callable[[str], str | None] = lambda _: None) -> None:
        self.session_s = 0.0
        super().__init__(sasl=SaslSession("sub", owner_of, lambda: self.session_s))

    def passes(self, asked: bytes, reported: bytes) -> None:
        assert (self.client(asked), self.broker(reported)) == (asked, reported)

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
        """That of a GetTelemetrySubscriptions request, which is answered at once."""
        assert self.client(request(71, 0, 70)) == b""
        assert self.take_client()
        return self.receiver.client.principal

    def push(self) -> str:
        assert self.client(request(72, 0, 71, PUSH)) == b""
        assert self.flush()
        return self.receiver.client.principal
