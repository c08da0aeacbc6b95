"""Telemetry requests: the subscription id that a push states; bodies, passed to a receiver as a connection does."""

from collections.abc import Iterable

from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.subscriptions.subscription_id import instance_subscription_id, subscription_crc
from telemetry.wire.apis import PUSH_TELEMETRY
from telemetry.wire.telemetry_messages import read_push


def answered(receiver: TelemetryReceiver, api_key: int, body: bytes, caller: Caller, now_ms: int) -> Answer:
    """`api_key`: GetTelemetrySubscriptions or PushTelemetry. Raises ProtocolError."""
    if api_key != PUSH_TELEMETRY:
        return receiver.answer_get(body, caller, now_ms)
    head, payload = read_push(body)
    return receiver.answer_push(PushRequest(*head, caller), payload, now_ms)


def subscription_id(metrics: Iterable[str], interval_ms: int, client_instance_id: bytes) -> int:
    """That a broker computes. `metrics`: in their set's iteration order."""
    return instance_subscription_id(subscription_crc(metrics, interval_ms), client_instance_id)
