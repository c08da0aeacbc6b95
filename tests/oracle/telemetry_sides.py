"""Kafka's own ClientMetricsManager and our receiver behind the same interface, called with the bytes of the wire."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError

from exporters.model import Connection, RecordKind
from headroom.demo.jvm import Jvm
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.errors import InvalidSubscriptionError
from tests.kit.telemetry_requests import answered

MAX_BYTES = 100
START_MS = 1_700_000_000_000
CONFIG_CODES = {"ConfigException": 40, "InvalidConfigurationException": 40, "InvalidRequestException": 42}

CLIENTS = [
    ("producer-1", Connection("c", "L", "u", "127.0.0.1", 40001, "apache-kafka-java", "4.3.1", 1)),
    ("consumer-ä", Connection("c", "L", "u", "10.0.0.7", 50002, "librdkafka", "2.16.0", 2)),
    (None, Connection("c", "L", "u", "127.0.0.1", 40003, "unknown", "unknown", 1)),
]


class Kafka:
    """Kafka's classes, looked up once, and what all brokers share: each look-up is a round trip to the JVM."""

    def __init__(self, jvm: Jvm) -> None:
        java, common, server = (
            jvm.classes.java,
            jvm.classes.org.apache.kafka.common,
            jvm.classes.org.apache.kafka.server,
        )
        self.properties = jvm.properties
        self.atomic_reference = java.util.concurrent.atomic.AtomicReference
        self.event_handler = java.beans.EventHandler
        self.time = java.lang.Class.forName("org.apache.kafka.common.utils.Time")
        self.wrap = java.nio.ByteBuffer.wrap
        self.join = java.lang.String.join
        self.uuid = functools.cache(lambda text: common.Uuid(*struct.unpack(">qq", text)))
        self.accessor = common.protocol.ByteBufferAccessor
        self.to_bytes = common.protocol.MessageUtil.toVersionPrefixedBytes
        self.parse_get = common.requests.GetTelemetrySubscriptionsRequest.parse
        self.parse_push = common.requests.PushTelemetryRequest.parse
        self.metrics = common.metrics.Metrics
        self.manager = server.ClientMetricsManager
        self.plugin = server.metrics.ClientTelemetryExporterPlugin()
        field = java.lang.Class.forName("org.apache.kafka.server.ClientMetricsManager").getDeclaredField(
            "clientInstanceCache"
        )
        field.setAccessible(True)
        self.instances_of = field.get
        self.contexts = [_context(java, common, number, *client) for number, client in enumerate(CLIENTS)]


class Broker:
    """Kafka's manager with a clock that is ours."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._clock = kafka.atomic_reference(START_MS)
        # A Java proxy that returns the clock's value for each method of Time, without a class of ours in the JVM.
        time = kafka.event_handler.create(kafka.time, self._clock, "get")
        self._manager = kafka.manager(kafka.plugin, MAX_BYTES, time, kafka.metrics())
        self._instances = kafka.instances_of(self._manager)

    def close(self) -> None:
        self._manager.close()

    def at(self, now_ms: int) -> None:
        self._clock.set(now_ms)

    def update(self, name: str, values: dict[str, str]) -> tuple[int, str | None]:
        try:
            self._manager.updateSubscription(name, self._kafka.properties(values))
        except Py4JJavaError as exc:
            error = exc.java_exception
            return CONFIG_CODES[error.getClass().getSimpleName()], error.getMessage()
        return 0, None

    def get(self, body: bytes, client: int) -> bytes:
        request = self._kafka.parse_get(self._readable(body), 0)
        context = self._kafka.contexts[client]
        return self._written(self._manager.processGetTelemetrySubscriptionRequest(request, context))

    def push(self, body: bytes, client: int) -> bytes:
        request = self._kafka.parse_push(self._readable(body), 0)
        return self._written(self._manager.processPushTelemetryRequest(request, self._kafka.contexts[client]))

    def disconnected(self, client: int) -> None:
        self._manager.connectionDisconnectListener().onDisconnect(str(client))

    def instance(self, client_instance_id: bytes) -> Any:
        return self._instances.get(self._kafka.uuid(client_instance_id))

    def metrics_of(self, instance: Any) -> list[str]:
        """In the order of its set."""
        return list(filter(None, self._kafka.join("\n", instance.metrics()).split("\n")))

    def _readable(self, body: bytes) -> Any:
        return self._kafka.accessor(self._kafka.wrap(body))

    def _written(self, response: Any) -> bytes:
        return bytes(self._kafka.to_bytes(0, response.data()))[2:]


def _context(java: Any, common: Any, number: int, client_id: str | None, connection: Connection) -> Any:
    header = common.requests.RequestHeader(common.protocol.ApiKeys.PUSH_TELEMETRY, 0, client_id, 1)
    return common.requests.RequestContext(
        header,
        str(number),
        java.net.InetAddress.getByName(connection.source_address),
        java.util.Optional.of(connection.source_port),
        common.security.auth.KafkaPrincipal.ANONYMOUS,
        common.network.ListenerName("L"),
        common.security.auth.SecurityProtocol.PLAINTEXT,
        common.network.ClientInformation(connection.software_name, connection.software_version),
        False,
    )


class Ours:
    """Our receiver with a spool that accepts all records."""

    def __init__(self, new_id: Callable[[], bytes]) -> None:
        self.rules = ClientMetrics(new_id=new_id)
        self.receiver = TelemetryReceiver(self.rules, append=self._append, telemetry_max_bytes=MAX_BYTES)
        self.now_ms = START_MS
        self.kept: list[RecordKind] = []

    def _append(self, kind: RecordKind, body: bytes) -> None:
        self.kept.append(kind)

    def update(self, name: str, values: dict[str, str]) -> tuple[int, str | None]:
        try:
            self.rules.update(name, values, self.now_ms)
        except InvalidSubscriptionError as exc:
            return int(exc.code), str(exc)
        return 0, None

    def answer(self, api_key: int, body: bytes, client: int) -> bytes:
        client_id, connection = CLIENTS[client]
        caller = Caller(connection, client_id, str(client))
        return answered(self.receiver, api_key, body, caller, self.now_ms).body
