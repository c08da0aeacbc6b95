"""The broker-side rules of KIP-714 for GetTelemetrySubscriptions and PushTelemetry.

Sans-I/O: time and new ids are parameters. Source: ClientMetricsManager of Kafka 4.3; order of checks and codes are
the same. Deliberate differences:

- A terminating push that is refused does not lock its client out (KAFKA-20898).
- Payloads are not decompressed here, so a decompression bomb is accepted, and dropped with a reason at ingest.
- A null payload is treated as empty; a broker closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from exporters.spool.records import push_origin
from telemetry.rules.client_instances import MAX_INSTANCES, Caller, Instance, Instances, attributes_of
from telemetry.rules.java.hash import uuid_text
from telemetry.rules.subscription_config import MATCH_KEYS, Subscription, parse_subscription
from telemetry.rules.subscriptions import Subscriptions
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError

log = structlog.get_logger(__name__)

ZERO_ID: Final = bytes(16)
RESERVED_IDS: Final = frozenset({ZERO_ID, bytes(15) + b"\x01"})
_COMPRESSION_TYPES: Final = frozenset(range(5))  # none, gzip, snappy, lz4, zstd
_NONE: Final = ErrorCode.NONE  # on the way of each push: a member is looked up by Python code in 3.11
# After these a client may ask again at once.
_MENDED_BY_GET: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})


class PushRequest:
    """A PushTelemetry request without its payload, and its sender. `origin`: both, encoded for spool records."""

    __slots__ = (
        "caller",
        "client_instance_id",
        "compression_type",
        "instance",
        "origin",
        "subscription_id",
        "terminating",
    )

    def __init__(
        self, client_instance_id: bytes, subscription_id: int, terminating: bool, compression_type: int, caller: Caller
    ) -> None:
        self.client_instance_id = client_instance_id
        self.subscription_id = subscription_id
        self.terminating = terminating
        self.compression_type = compression_type
        self.caller = caller
        self.instance: Instance | None = None  # as found by the last push with this header
        # The id of an unknown codec may be negative; the push is refused before it is encoded.
        self.origin = push_origin(
            client_instance_id, subscription_id, terminating, compression_type & 0xFF, caller.sender
        )


class ClientMetrics:
    """The subscriptions and client instances of one cluster.

    `new_id` returns the 16 bytes of a version 4 UUID. `match_keys`: the attributes that subscriptions may match.
    """

    def __init__(
        self,
        *,
        new_id: Callable[[], bytes],
        max_instances: int = MAX_INSTANCES,
        match_keys: Collection[str] = MATCH_KEYS,
    ) -> None:
        self.subscriptions = Subscriptions()
        self.instances = Instances(max_instances)
        self.changed_at_ms = 0  # when the subscriptions last changed
        self.match_keys = match_keys
        self.resources: Mapping[str, Mapping[str, str]] = {}  # as given, including invalid ones
        self._new_id = new_id

    # --- subscriptions

    def update(self, name: str, values: Mapping[str, str], now_ms: int) -> None:
        """Sets one resource; empty values remove it. Raises InvalidSubscriptionError and then changes nothing."""
        subscription = parse_subscription(name, values, self.match_keys)
        others = {other: self.resources[other] for other in self.resources if other != name}
        if values:
            self.resources = {**others, name: dict(values)}
            self._change([subscription], [], now_ms)
            return
        self.resources = others
        if name in self.subscriptions:
            self._change([], [name], now_ms)

    def replace_all(self, resources: Mapping[str, Mapping[str, str]], now_ms: int) -> None:
        """Replaces all resources. Invalid resources are logged once and ignored."""
        given = {name: dict(values) for name, values in resources.items() if values}
        gone = [name for name in self.resources if name not in given]
        put = []
        for name, values in given.items():
            if self.resources.get(name) == values:
                continue
            subscription = self._parsed(name, values)
            if subscription:
                put.append(subscription)
            else:
                gone.append(name)
        self.resources = given
        remove = [name for name in gone if name in self.subscriptions]
        if put or remove:
            self._change(put, remove, now_ms)

    def _parsed(self, name: str, values: Mapping[str, str]) -> Subscription | None:
        try:
            return parse_subscription(name, values, self.match_keys)
        except InvalidSubscriptionError as exc:
            log.warning("invalid client metrics subscription ignored", name=name, error=str(exc))
            return None

    def _change(self, put: list[Subscription], remove: list[str], now_ms: int) -> None:
        self.subscriptions.change(put, remove)
        self.changed_at_ms = now_ms

    # --- requests

    def get(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> tuple[ErrorCode, Instance]:
        """GetTelemetrySubscriptions: the code, and for NONE the instance whose selection is the answer."""
        if client_instance_id == ZERO_ID:
            client_instance_id = self._unused_id()
        instance = self._touch(client_instance_id, caller, now_ms)
        if not instance.accept_get(now_ms) and instance.last_known_error not in _MENDED_BY_GET:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, instance
        instance.last_known_error = ErrorCode.NONE
        return ErrorCode.NONE, instance

    def push(self, request: PushRequest, now_ms: int, too_large: bool) -> tuple[ErrorCode, Instance | None]:
        """PushTelemetry: the code and the instance, which is None for a reserved id.

        `too_large`: the payload is longer than telemetry.max.bytes.
        After NONE, call the instance's `refused` if the push could not be stored.
        """
        instance = request.instance
        if instance is None or not self.instances.touch_found(instance, now_ms):
            if request.client_instance_id in RESERVED_IDS:
                return ErrorCode.INVALID_REQUEST, None
            instance = self.instances.touch(request.client_instance_id, now_ms)
        if instance is None or instance.version != self.subscriptions.version:
            instance = self._evaluated(instance, request.client_instance_id, request.caller, now_ms)
        request.instance = instance
        code = _validate(request, instance, now_ms, too_large)
        instance.last_known_error = code
        if code is _NONE or not request.terminating:
            instance.terminating = request.terminating
        return code, instance

    def disconnected(self, connection_id: str) -> None:
        """Forgets the instances of a closed connection."""
        self.instances.disconnected(connection_id)

    def expire(self, now_ms: int) -> None:
        """Removes expired instances early; otherwise they are removed at their next request."""
        self.instances.expire(now_ms)

    def _touch(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> Instance:
        """The instance, created or re-evaluated if needed."""
        instance = self.instances.touch(client_instance_id, now_ms)
        if instance is not None and instance.version == self.subscriptions.version:
            return instance
        return self._evaluated(instance, client_instance_id, caller, now_ms)

    def _evaluated(self, known: Instance | None, client_instance_id: bytes, caller: Caller, now_ms: int) -> Instance:
        version = self.subscriptions.version
        if known is None:
            connection, client_id = caller.connection, caller.client_id
            selection = self.subscriptions.select(attributes_of(client_instance_id, connection, client_id))
            instance = Instance(client_instance_id, connection, client_id, selection, version)
        else:
            instance = known.successor(self.subscriptions.select(known.attributes), version)
        self.instances.put(instance, caller.connection_id, now_ms)
        return instance

    def _unused_id(self) -> bytes:
        """Like Uuid.randomUuid() of Kafka 4.4: without '-' in its text, which command lines may read as an option."""
        while True:
            candidate = self._new_id()
            if candidate not in RESERVED_IDS and candidate not in self.instances and "-" not in uuid_text(candidate):
                return candidate


def _validate(request: PushRequest, instance: Instance, now_ms: int, too_large: bool) -> ErrorCode:
    """ClientMetricsManager.validatePushRequest. The order of the checks decides which code a client gets."""
    if instance.terminating:
        return ErrorCode.INVALID_REQUEST
    if not instance.accept_push(now_ms) and not request.terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if request.subscription_id != instance.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in _COMPRESSION_TYPES:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if too_large:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return _NONE
