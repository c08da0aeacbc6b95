"""The client instances that telemetry was asked for or came from lately: their state, and when it is forgotten.

Sans-I/O. Source: ClientMetricsInstance, ClientMetricsInstanceMetadata, and the caches of ClientMetricsManager.
Unlike a broker, an instance that goes takes with it all that is kept for it: a broker leaves behind a timer when its
cache is full, which may remove the instance's successor, and a connection that still points to it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from exporters.model import Connection
from exporters.records import sender_bytes
from telemetry.errors import ErrorCode
from telemetry.java_hash import instance_subscription_id, uuid_text
from telemetry.java_regex import MAX_SUBJECT_CHARS
from telemetry.selection import Attributes, Selection

MAX_INSTANCES: Final = 16_384
_MIN_EXPIRY_MS = 60_000


class Caller:
    """Who sends telemetry requests on one connection. `sender`: the same, as spool records tell it."""

    __slots__ = ("client_id", "connection", "connection_id", "sender")

    def __init__(self, connection: Connection, client_id: str | None, connection_id: str) -> None:
        self.connection = connection
        self.client_id = client_id
        self.connection_id = connection_id
        self.sender = sender_bytes(connection, client_id)


def attributes_of(client_instance_id: bytes, caller: Caller) -> Attributes:
    """What match criteria look at."""
    connection, client_id = caller.connection, caller.client_id
    return {
        "client_instance_id": uuid_text(client_instance_id),
        "client_id": None if client_id is None else client_id[:MAX_SUBJECT_CHARS],
        "client_software_name": connection.software_name[:MAX_SUBJECT_CHARS],
        "client_software_version": connection.software_version[:MAX_SUBJECT_CHARS],
        "client_source_address": connection.source_address,
        "client_source_port": str(connection.source_port),
        "principal": connection.principal[:MAX_SUBJECT_CHARS],
        "listener": connection.listener,
        "cluster": connection.cluster,
    }


@dataclass(slots=True, eq=False)
class Instance:
    """One client instance under one version of the subscriptions; all times are wall time."""

    client_instance_id: bytes
    attributes: Attributes  # as they were when it was first seen
    selection: Selection
    version: int  # of the subscriptions
    touched_ms: int = 0
    last_get_ms: int = 0
    last_push_ms: int = 0
    terminating: bool = False
    last_known_error: ErrorCode = ErrorCode.NONE
    recorded_on: str = ""  # the connection on which it was last recorded as seen
    connections: set[str] = field(default_factory=set)  # those whose end is its end
    subscription_id: int = field(init=False)
    lifetime_ms: int = field(init=False)  # without being touched

    def __post_init__(self) -> None:
        self.lifetime_ms = max(_MIN_EXPIRY_MS, 3 * self.selection.interval_ms)
        self.subscription_id = instance_subscription_id(self.selection.crc, self.client_instance_id)

    def successor(self, selection: Selection, version: int) -> Instance:
        """The same client under newer subscriptions: what it did before is forgotten."""
        return Instance(
            self.client_instance_id,
            self.attributes,
            selection,
            version,
            recorded_on=self.recorded_on,
            connections=self.connections,
        )

    def accept_get(self, now_ms: int) -> bool:
        """Whether an interval has passed since the last request (maybeUpdateGetRequestTimestamp)."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.selection.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def accept_push(self, now_ms: int) -> bool:
        """Whether an interval has passed since the last push, or a GET was first (maybeUpdatePushRequestTimestamp)."""
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.selection.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True

    def not_stored(self) -> None:
        """A push passed the rules and could not be kept: the client is told to come back, also after its last one."""
        self.last_known_error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        self.terminating = False


class Instances:
    """At most `max_instances`, those that were silent longest go first."""

    def __init__(self, max_instances: int) -> None:
        self.evicted = 0
        self._max_instances = max_instances
        self._by_id: OrderedDict[bytes, Instance] = OrderedDict()  # last touched last
        self._by_connection: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, client_instance_id: bytes) -> bool:
        return client_instance_id in self._by_id

    def touch(self, client_instance_id: bytes, now_ms: int) -> Instance | None:
        """The instance, which has its full time to live again; None when it is not known or its time is over."""
        instance = self._by_id.get(client_instance_id)
        if instance is None:
            return None
        if instance.touched_ms + instance.lifetime_ms <= now_ms:
            self._remove(client_instance_id)
            return None
        instance.touched_ms = now_ms
        self._by_id.move_to_end(client_instance_id)
        return instance

    def put(self, instance: Instance, connection_id: str, now_ms: int) -> None:
        """Adds or replaces an instance; it ends with the connection."""
        client_instance_id = instance.client_instance_id
        self._unbind(connection_id)
        self._by_connection[connection_id] = client_instance_id
        instance.connections.add(connection_id)
        instance.touched_ms = now_ms
        self._by_id[client_instance_id] = instance
        self._by_id.move_to_end(client_instance_id)
        if len(self._by_id) > self._max_instances:
            self._remove(next(iter(self._by_id)))
            self.evicted += 1

    def disconnected(self, connection_id: str) -> None:
        """The instance that the connection brought is gone, whatever other connections it uses."""
        client_instance_id = self._unbind(connection_id)
        if client_instance_id is not None:
            self._remove(client_instance_id)

    def expire(self, now_ms: int) -> None:
        """Forgets those whose time is over."""
        over = []
        for instance in self._by_id.values():
            if instance.touched_ms + _MIN_EXPIRY_MS > now_ms:
                break  # so are all behind it: the order is that of the last touch
            if instance.touched_ms + instance.lifetime_ms <= now_ms:
                over.append(instance.client_instance_id)
        for client_instance_id in over:
            self._remove(client_instance_id)

    def _remove(self, client_instance_id: bytes) -> None:
        for connection_id in self._by_id.pop(client_instance_id).connections:
            self._by_connection.pop(connection_id, None)

    def _unbind(self, connection_id: str) -> bytes | None:
        """Takes a connection from the instance it belongs to, whose id is returned."""
        client_instance_id = self._by_connection.pop(connection_id, None)
        if client_instance_id is not None:
            self._by_id[client_instance_id].connections.discard(connection_id)
        return client_instance_id
