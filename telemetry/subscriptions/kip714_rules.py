"""The rules of KIP-714 that a broker applies to GetTelemetrySubscriptions and PushTelemetry, and its client instances.

Sans-I/O: time and new ids are parameters. Source: ClientMetricsManager of Kafka 4.3 with its caches,
ClientMetricsInstance and ClientMetricsInstanceMetadata; order of checks and codes are the same. Deliberate differences:

- A terminating push that is refused does not lock its client out (KAFKA-20898).
- Payloads are not decompressed here, so a decompression bomb is accepted, and dropped with a reason at ingest.
- A null payload is treated as empty; a broker closes the connection.
- The id of an instance is nobody's secret: a request of another principal or source network that uses it has no effect
  on the instance, and a terminating push ends it only on the instance's own connection.
- An evicted instance leaves no expiration timer that could remove its successor, as it does in a broker's full cache.

Instances are kept small: they refer to the facts of their connection; the strings that selectors match are built late.
"""

import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from ipaddress import IPv6Address
from typing import Final

import structlog

from exporters.identity import payer_of
from exporters.model import Connection
from exporters.spool.records import push_origin
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.subscriptions.subscription import (
    MATCH_KEYS,
    MIN_LIFETIME_MS,
    Attributes,
    MergedSubscriptions,
    Subscriptions,
    parse_subscription,
)
from telemetry.subscriptions.subscription_id import instance_subscription_id
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError

MAX_INSTANCES: Final = 16_384
_CONNECTIONS_PER_INSTANCE: Final = 2  # a receiver without connections of its own never reports that one closed
log = structlog.get_logger(__name__)

ZERO_ID: Final = bytes(16)
RESERVED_IDS: Final = frozenset({ZERO_ID, bytes(15) + b"\x01"})
_COMPRESSION_TYPES: Final = frozenset(range(5))  # none, gzip, snappy, lz4, zstd
_NONE: Final = ErrorCode.NONE  # on the way of each push: a member is looked up by Python code in 3.11
# After these a client may ask again at once.
_MENDED_BY_GET: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})


def attributes_of(client_instance_id: bytes, connection: Connection, client_id: str | None) -> Attributes:
    return {
        "client_instance_id": uuid_text(client_instance_id),
        "client_id": None if client_id is None else client_id[:MAX_SUBJECT_CHARS],
        "client_software_name": connection.software_name[:MAX_SUBJECT_CHARS],
        "client_software_version": connection.software_version[:MAX_SUBJECT_CHARS],
        "client_source_address": _as_java(connection.source_address),
        "client_source_port": str(connection.source_port),
        "principal": connection.principal[:MAX_SUBJECT_CHARS],
        "listener": connection.listener,
        "cluster": connection.cluster,
    }


def _as_java(address: str) -> str:
    """As InetAddress.getHostAddress: an IPv6 address with all of its groups."""
    if ":" not in address:
        return address
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", IPv6Address(address).packed))


class Instance:
    """One client instance under one version of the subscriptions. Times are those of the rules' clock."""

    __slots__ = (
        "client_id",
        "client_instance_id",
        "connection",
        "connection_id",
        "is_held",
        "last_get_ms",
        "last_known_error",
        "last_push_ms",
        "newer",
        "older",
        "recorded_on",
        "selection",
        "subscription_id",
        "terminating",
        "touched_ms",
        "version",
    )

    def __init__(
        self,
        client_instance_id: bytes,
        connection: Connection,
        client_id: str | None,
        selection: MergedSubscriptions,
        version: int,
        recorded_on: str = "",
    ) -> None:
        self.client_instance_id = client_instance_id
        self.connection = connection  # at the first request
        self.client_id = client_id if client_id is None else client_id[:MAX_SUBJECT_CHARS]
        self.selection = selection
        self.version = version  # of the subscriptions
        self.touched_ms = self.last_get_ms = self.last_push_ms = 0
        self.terminating = False
        self.last_known_error = ErrorCode.NONE
        self.recorded_on = recorded_on  # the connection on which it was last recorded as seen
        self.connection_id = ""  # the one on which it was last evaluated
        self.subscription_id = instance_subscription_id(selection.crc, client_instance_id)
        self.is_held = False  # by Instances, whose order of last use is a list of the instances themselves
        self.older: Instance | None = None
        self.newer: Instance | None = None

    def is_of(self, caller: Caller) -> bool:
        """Whether the caller pays for the instance."""
        mine, other = self.connection, caller.connection
        return mine is other or (
            payer_of(mine.principal, mine.source_address) == payer_of(other.principal, other.source_address)
        )

    def refused(self, code: ErrorCode) -> None:
        """An accepted push could not be stored: the client may retry at once, even a terminating push."""
        self.last_known_error = code
        self.terminating = False


class Instances:
    """Holds at most `max_instances`; evicts the least recently used first."""

    def __init__(self, max_instances: int) -> None:
        self._max_instances = max_instances
        self._by_id: dict[bytes, Instance] = {}
        self._oldest: Instance | None = None  # by last use
        self._newest: Instance | None = None
        self._by_connection: dict[str, bytes] = {}
        self._lifetimes: Counter[int] = Counter()  # instances by lifetime

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, client_instance_id: bytes) -> bool:
        return client_instance_id in self._by_id

    def touch(self, client_instance_id: bytes, now_ms: int) -> Instance | None:
        """Returns the instance and restarts its time to live; None when it is unknown or expired."""
        instance = self._by_id.get(client_instance_id)
        return instance if instance is not None and self.touch_found(instance, now_ms) else None

    def touch_found(self, instance: Instance, now_ms: int) -> bool:
        """`touch` of an instance that was found before; False when it is no longer held."""
        if not instance.is_held:
            return False
        if instance.touched_ms + instance.selection.lifetime_ms <= now_ms:
            self._remove(instance)
            return False
        instance.touched_ms = now_ms
        if instance.newer is not None:
            self._unlink(instance)
            self._link(instance)
        return True

    def put(self, instance: Instance, connection_id: str, now_ms: int) -> None:
        """Adds or replaces an instance; it is removed when `connection` closes."""
        client_instance_id = instance.client_instance_id
        self._drop(self._by_id.get(client_instance_id))
        self._lifetimes[instance.selection.lifetime_ms] += 1
        self._by_connection[connection_id] = client_instance_id
        instance.connection_id = connection_id
        instance.touched_ms = now_ms
        self._by_id[client_instance_id] = instance
        instance.is_held = True
        self._link(instance)
        if len(self._by_id) > self._max_instances and self._oldest is not None:
            self._remove(self._oldest)
        if len(self._by_connection) > _CONNECTIONS_PER_INSTANCE * self._max_instances:
            del self._by_connection[next(iter(self._by_connection))]

    def disconnected(self, connection_id: str) -> None:
        """Removes the instance last evaluated on the connection, even if it also uses other connections."""
        client_instance_id = self._by_connection.pop(connection_id, None)
        if client_instance_id is not None:
            self._drop(self._by_id.pop(client_instance_id, None))

    def expire(self, now_ms: int) -> None:
        """Removes expired instances early; otherwise they are removed at their next request."""
        shortest_ms = min(self._lifetimes, default=MIN_LIFETIME_MS)  # avoids a scan of a million instances
        instance = self._oldest
        while instance is not None and instance.touched_ms + shortest_ms <= now_ms:
            newer = instance.newer
            if instance.touched_ms + instance.selection.lifetime_ms <= now_ms:
                self._remove(instance)
            instance = newer

    def _link(self, instance: Instance) -> None:
        """Makes it the newest."""
        instance.older, instance.newer = self._newest, None
        if self._newest is None:
            self._oldest = instance
        else:
            self._newest.newer = instance
        self._newest = instance

    def _unlink(self, instance: Instance) -> None:
        older, newer = instance.older, instance.newer
        if older is None:
            self._oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self._newest = older
        else:
            newer.older = older
        instance.older = instance.newer = None

    def _drop(self, instance: Instance | None) -> None:
        """Removes it from everything except `_by_id`."""
        if instance is not None:
            self._unlink(instance)
            instance.is_held = False
            lifetime_ms = instance.selection.lifetime_ms
            self._lifetimes[lifetime_ms] -= 1
            if not self._lifetimes[lifetime_ms]:
                del self._lifetimes[lifetime_ms]

    def _remove(self, instance: Instance) -> None:
        """Removes it. Its earlier connections keep their reference until they close, as in a broker."""
        client_instance_id, connection_id = instance.client_instance_id, instance.connection_id
        del self._by_id[client_instance_id]
        self._drop(instance)
        if self._by_connection.get(connection_id) == client_instance_id:
            del self._by_connection[connection_id]


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

    def replace_all(self, resources: Mapping[str, Mapping[str, str]], now_ms: int) -> None:
        """Replaces all resources. Invalid resources are logged once and ignored."""
        subscribed = {name: dict(values) for name, values in resources.items() if values}
        if subscribed == self.resources:
            return
        gone = [name for name in self.resources if name not in subscribed]
        put = []
        for name, values in subscribed.items():
            if self.resources.get(name) == values:
                continue
            try:
                put.append(parse_subscription(name, values, self.match_keys))
            except InvalidSubscriptionError as exc:
                log.warning("invalid client metrics subscription ignored", name=name, error=str(exc))
                gone.append(name)
        self.resources = subscribed
        remove = [name for name in gone if name in self.subscriptions]
        if put or remove:
            self.subscriptions.change(put, remove)
            self.changed_at_ms = now_ms

    def get(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> tuple[ErrorCode, Instance]:
        """GetTelemetrySubscriptions: the code, and for NONE the instance whose selection is the answer."""
        if client_instance_id == ZERO_ID:
            # As Uuid.randomUuid() of Kafka 4.4: without '-' in its text, which command lines may read as an option.
            while (
                client_instance_id in RESERVED_IDS
                or client_instance_id in self.instances
                or "-" in uuid_text(client_instance_id)
            ):
                client_instance_id = self._new_id()
        instance = self.instances.touch(client_instance_id, now_ms)
        if instance is not None and not instance.is_of(caller):
            instance = self._unheld(client_instance_id, caller)
        elif instance is None or instance.version != self.subscriptions.version:
            instance = self._evaluate(instance, client_instance_id, caller, now_ms)
        # An interval must have passed since the last request (maybeUpdateGetRequestTimestamp).
        if now_ms - max(instance.last_get_ms, instance.last_push_ms) >= instance.selection.interval_ms:
            instance.last_get_ms = now_ms
        elif instance.last_known_error not in _MENDED_BY_GET:
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
            if instance is not None and not instance.is_of(request.caller):
                instance = self._unheld(request.client_instance_id, request.caller)
        if instance is None or instance.version != self.subscriptions.version:
            instance = self._evaluate(instance, request.client_instance_id, request.caller, now_ms)
        request.instance = instance
        code = _validate(request, instance, now_ms, too_large)
        instance.last_known_error = code
        if code is _NONE or not request.terminating:
            # Another connection of the same payer may know the id, but does not end the instance.
            instance.terminating = request.terminating and instance.connection_id == request.caller.connection_id
        return code, instance

    def _unheld(self, client_instance_id: bytes, caller: Caller) -> Instance:
        """An instance that is not kept. A request with the id of another payer's instance has no effect on that one."""
        attributes = attributes_of(client_instance_id, caller.connection, caller.client_id)
        selection, version = self.subscriptions.select(attributes), self.subscriptions.version
        return Instance(client_instance_id, caller.connection, caller.client_id, selection, version)

    def _evaluate(self, earlier: Instance | None, client_instance_id: bytes, caller: Caller, now_ms: int) -> Instance:
        """Puts an instance under the current subscriptions in place of the `earlier` one."""
        if earlier is None:
            instance = self._unheld(client_instance_id, caller)
        else:  # the same client under newer subscriptions, with its request times reset
            connection, client_id = earlier.connection, earlier.client_id
            selection = self.subscriptions.select(attributes_of(client_instance_id, connection, client_id))
            version, recorded_on = self.subscriptions.version, earlier.recorded_on
            instance = Instance(client_instance_id, connection, client_id, selection, version, recorded_on)
        self.instances.put(instance, caller.connection_id, now_ms)
        return instance


def _validate(request: PushRequest, instance: Instance, now_ms: int, too_large: bool) -> ErrorCode:
    """ClientMetricsManager.validatePushRequest. The order of the checks decides which code a client gets."""
    if instance.terminating:
        return ErrorCode.INVALID_REQUEST
    # An interval must have passed since the last push, or a GET came first (maybeUpdatePushRequestTimestamp).
    last_push_ms = instance.last_push_ms
    if instance.last_get_ms > last_push_ms or now_ms - last_push_ms >= instance.selection.interval_ms:
        instance.last_push_ms = now_ms
    elif not request.terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if request.subscription_id != instance.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in _COMPRESSION_TYPES:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if too_large:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return _NONE
