"""Both ends of a proxied connection, and frames of requests and responses for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from exporters.model import ANONYMOUS, UNKNOWN, Connection, Exchange
from telemetry.gateway.connection import ConnectionLimits, ProxiedConnection
from telemetry.gateway.responses import LocalAnswer
from telemetry.receiver.receiver import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payers import Caller
from telemetry.wire.apis import APIS

PUSH = struct.pack(">16siBb", b"\x07" * 16, 9, 0, 4) + b"\x05push\x00"
FACTS = Connection("c", "PLAINTEXT", ANONYMOUS, "10.0.0.1", 4000, UNKNOWN, UNKNOWN, 7)


class ScriptedReceiver(TelemetryReceiver):
    """Answers 71 at once and 72 after a flush, with bytes that identify the request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bytes, str | None]] = []
        self.gone: list[str] = []
        self.software = ""

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        self.asked.append(("get", 71, body, caller.client_id))
        self.software = f"{caller.connection.software_name} {caller.connection.software_version}"
        return Answer(body=b"answer-71", after_flush=False, refusal=b"come-back")

    def answer_push(self, request: PushRequest, payload: bytes, now_ms: int) -> Answer:
        self.asked.append(("push", 72, payload, request.caller.client_id))
        return Answer(body=b"answer-72", after_flush=True, refusal=b"come-back")

    def answer_oversize(self, request: PushRequest, now_ms: int) -> Answer:
        self.asked.append(("oversize", 72, request.client_instance_id, request.caller.client_id))
        return Answer(body=b"too-large", after_flush=False, refusal=b"come-back")

    def disconnected(self, connection_id: str) -> None:
        self.gone.append(connection_id)


class Both:
    """The connection with its two streams recorded."""

    def __init__(self, limits: ConnectionLimits | None = None, local: Mapping[int, LocalAnswer] | None = None) -> None:
        self.receiver = ScriptedReceiver()
        self.seen: list[Exchange] = []
        self.connection = ProxiedConnection(
            facts=FACTS,
            connection_id="one",
            receiver=self.receiver,
            address_of=lambda node_id, host, port: ("gw", 20_000 + node_id),
            observe=lambda values: self.seen.append(Exchange(*values)),
            limits=limits or ConnectionLimits(),
            local=local,
        )

    def client(self, data: bytes) -> bytes:
        self.connection.from_client(data, 5)
        return self.take_upstream()

    def broker(self, data: bytes) -> bytes:
        self.connection.from_upstream(data, 6)
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
            self.connection.from_upstream(b"", 7)
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


def local(correlation: int, body: bytes) -> bytes:
    return framed(struct.pack(">i", correlation) + b"\x00" + body)


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
