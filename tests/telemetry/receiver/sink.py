"""A receiver with its rules, a spool that can fail, and request bodies for it."""

from __future__ import annotations

import itertools
import struct
from typing import Any

from exporters.model import Connection, RecordKind
from quota_metrics.kafka.primitives import Reader
from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.payer_budgets import Caller, Payers
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from tests.kit.telemetry_requests import answered, answered_oversize, subscription_id
from tests.kit.wire import write_compact_bytes

NOW_MS = 1_700_000_000_000
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
MAX_BYTES = 100
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)
PUSH_NONE = bytes(7)
PUSH_89 = b"\x00\x00\x00\x00\x00\x59\x00"


class Spool:
    """Keeps appended records, or raises the given error."""

    def __init__(self) -> None:
        self.records: list[tuple[RecordKind, bytes]] = []
        self.failure: Exception | None = None

    def append(self, kind: RecordKind, body: bytes) -> None:
        if self.failure:
            raise self.failure
        assert isinstance(body, bytes)
        self.records.append((kind, body))


class Sink:
    """A receiver with one subscription to all metrics each second, and a client."""

    def __init__(self, metrics: str = "*", payers: Payers | None = None) -> None:
        numbers = itertools.count(1)
        self.spool = Spool()
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"))
        self.rules.replace_all({"sub": {"metrics": metrics, "interval.ms": "1000"}}, NOW_MS)
        self.receiver = TelemetryReceiver(
            self.rules, append=self.spool.append, telemetry_max_bytes=MAX_BYTES, payers=payers
        )
        self.now_ms = NOW_MS
        self.connection = CONNECTION

    def caller(self, connection_id: str = "c1", client_id: str | None = "app") -> Caller:
        return Caller(self.connection, client_id, connection_id)

    def answer(self, api_key: int, body: bytes, connection_id: str = "c1", client_id: str | None = "app") -> Answer:
        return answered(self.receiver, api_key, body, self.caller(connection_id, client_id), self.now_ms)

    def oversize(self, body: bytes) -> Answer:
        return answered_oversize(self.receiver, body, self.caller(), self.now_ms)

    def get(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> Answer:
        return self.answer(GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id + b"\x00", connection_id)

    def push(self, payload: bytes | None = b"payload", client_id: str | None = "app", **fields: Any) -> Answer:
        return self.answer(PUSH_TELEMETRY, push_body(payload, **fields), client_id=client_id)


def push_body(
    payload: bytes | None,
    *,
    client_instance_id: bytes = ID,
    subscription: int | None = None,
    terminating: bool = False,
    compression_type: int = 0,
) -> bytes:
    if subscription is None:
        subscription = subscription_id(["*"], 1000, client_instance_id)
    body = bytearray(struct.pack(">16si?b", client_instance_id, subscription, terminating, compression_type))
    if payload is None:
        body += b"\x00"
    else:
        write_compact_bytes(body, payload)
    return bytes(body) + b"\x00"


def code_of(answer: Answer) -> int:
    return Reader(answer.body, 4).int16()
