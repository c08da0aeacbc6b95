"""State and expiry of client instances that recently requested subscriptions or pushed.

Sans-I/O. Source: ClientMetricsInstance, ClientMetricsInstanceMetadata, and the caches of ClientMetricsManager.
Unlike in a broker with a full cache, an evicted instance leaves no expiration timer that could remove its successor.

Instances are kept small: they refer to the facts of their connection, and the strings that selectors match are built
on demand.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from exporters.model import Connection
from exporters.spool.records import sender_bytes
from telemetry.rules.java.hash import instance_subscription_id, uuid_text
from telemetry.rules.java.regex import MAX_SUBJECT_CHARS
from telemetry.rules.subscriptions import MIN_LIFETIME_MS, Attributes, Selection
from telemetry.wire.errors import ErrorCode

MAX_INSTANCES: Final = 16_384
_CONNECTIONS_PER_INSTANCE: Final = 2  # a receiver without connections of its own never reports that one closed


class Caller:
    """The identity behind one connection. `sender`: the same, encoded for spool records."""

    __slots__ = ("client_id", "connection", "connection_id", "sender")

    def __init__(self, connection: Connection, client_id: str | None, connection_id: str) -> None:
        self.connection = connection
        self.client_id = client_id
        self.connection_id = connection_id
        self.sender = sender_bytes(connection, client_id)


def attributes_of(client_instance_id: bytes, connection: Connection, client_id: str | None) -> Attributes:
    """The attributes that match criteria apply to."""
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
        selection: Selection,
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

    def successor(self, selection: Selection, version: int) -> Instance:
        """The same client under newer subscriptions, with its request times reset."""
        return Instance(self.client_instance_id, self.connection, self.client_id, selection, version, self.recorded_on)

    @property
    def attributes(self) -> Attributes:
        """The attributes that its subscriptions are matched by."""
        return attributes_of(self.client_instance_id, self.connection, self.client_id)

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
        self._lifetimes: Counter[int] = Counter()  # how many instances have each

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
        """Removes expired instances."""
        over = []
        shortest_ms = min(self._lifetimes, default=MIN_LIFETIME_MS)  # avoids a scan of a million instances
        instance = self._oldest
        while instance is not None and instance.touched_ms + shortest_ms <= now_ms:
            if instance.touched_ms + instance.selection.lifetime_ms <= now_ms:
                over.append(instance)
            instance = instance.newer
        for expired in over:
            self._remove(expired)

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
        """Of everything except `_by_id`."""
        if instance is not None:
            self._unlink(instance)
            instance.is_held = False
            lifetime_ms = instance.selection.lifetime_ms
            self._lifetimes[lifetime_ms] -= 1
            if not self._lifetimes[lifetime_ms]:
                del self._lifetimes[lifetime_ms]

    def _remove(self, instance: Instance) -> None:
        """Connections on which it was evaluated earlier keep their reference until they close, as in a broker."""
        client_instance_id, connection_id = instance.client_instance_id, instance.connection_id
        del self._by_id[client_instance_id]
        self._drop(instance)
        if self._by_connection.get(connection_id) == client_instance_id:
            del self._by_connection[connection_id]
