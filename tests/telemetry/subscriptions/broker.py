"""One broker's rules and one client, on a clock that the test controls."""

from __future__ import annotations

import itertools

from exporters.model import Connection
from telemetry.subscriptions.kip714_rules import ClientMetrics, Instance, PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.errors import ErrorCode
from tests.kit.telemetry_requests import subscription_id

NOW_MS = 1_700_000_000_000
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
OTHER_ID = bytes.fromhex("00112233445566778899aabbccddeeff")
SUB_1 = {"metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.", "interval.ms": "30000"}
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)

NONE = ErrorCode.NONE
INVALID_REQUEST = ErrorCode.INVALID_REQUEST
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
UNKNOWN_SUBSCRIPTION_ID = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
UNSUPPORTED_COMPRESSION_TYPE = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
TOO_LARGE = ErrorCode.TELEMETRY_TOO_LARGE


class Broker:
    """The rules and one client's requests to them; the test sets `now_ms`."""

    def __init__(self, **subscriptions: dict[str, str]) -> None:
        numbers = itertools.count(1)
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"), max_instances=100)
        self.now_ms = NOW_MS
        self.connection = CONNECTION
        self.rules.replace_all(subscriptions, NOW_MS)

    def caller(self, connection_id: str, client_id: str | None = "producer-1") -> Caller:
        return Caller(self.connection, client_id, connection_id)

    def get(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> ErrorCode:
        return self.rules.get(client_instance_id, self.caller(connection_id), self.now_ms)[0]

    def granted(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> Instance:
        code, instance = self.rules.get(client_instance_id, self.caller(connection_id), self.now_ms)
        assert code is NONE
        return instance

    def push(
        self,
        client_instance_id: bytes = ID,
        *,
        subscription: int | None = None,
        terminating: bool = False,
        compression_type: int = 0,
        too_large: bool = False,
        connection_id: str = "c1",
    ) -> ErrorCode:
        if subscription is None:
            selection = self.rules.subscriptions.select({"client_id": "producer-1"})
            subscription = subscription_id(selection.metrics, selection.interval_ms, client_instance_id)
        request = PushRequest(
            client_instance_id, subscription, terminating, compression_type, self.caller(connection_id)
        )
        return self.rules.push(request, self.now_ms, too_large)[0]

    def instance(self, client_instance_id: bytes = ID) -> Instance:
        instance = self.rules.instances.touch(client_instance_id, self.now_ms)
        assert instance is not None
        return instance
