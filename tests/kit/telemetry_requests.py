"""Passes bodies of telemetry requests to a receiver, as a connection of the gateway does."""

from __future__ import annotations

from telemetry.receiver.receiver import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payers import Caller
from telemetry.wire.apis import PUSH_TELEMETRY
from telemetry.wire.telemetry_messages import read_push, read_push_head


def answered(receiver: TelemetryReceiver, api_key: int, body: bytes, caller: Caller, now_ms: int) -> Answer:
    """`api_key`: GetTelemetrySubscriptions or PushTelemetry. Raises ProtocolError."""
    if api_key != PUSH_TELEMETRY:
        return receiver.answer_get(body, caller, now_ms)
    head, payload = read_push(body)
    return receiver.answer_push(PushRequest(*head, caller), payload, now_ms)


def answered_oversize(receiver: TelemetryReceiver, body: bytes, caller: Caller, now_ms: int) -> Answer:
    """`body`: how a push begins. Raises ProtocolError."""
    return receiver.answer_oversize(PushRequest(*read_push_head(body), caller), now_ms)
