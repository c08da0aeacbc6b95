"""Compares our telemetry rules with Kafka's own ClientMetricsManager on random requests, byte for byte.

Each case is a random sequence of subscription updates, GetTelemetrySubscriptions, PushTelemetry, lost connections and
passing time, given to both as the bytes of the wire. Where we differ on purpose, that is asserted as such: a
terminating push that is refused or comes by another connection, prefixes that another one covers, payloads that cannot
be decompressed, null metrics. Time stays below what lets instances expire, which a broker does by its own clock.
"""

import functools
import gzip
import random
import struct
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import zstandard
from py4j.protocol import Py4JJavaError

from exporters.model import Connection, RecordKind
from headroom.demo.jvm import Jvm
from quota_metrics.kafka.primitives import Reader
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.java.hash import uuid_hash, uuid_text
from telemetry.subscriptions.kip714_rules import ZERO_ID, ClientMetrics, attributes_of
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.subscriptions.subscription import parse_subscription, without_covered
from telemetry.subscriptions.subscription_id import instance_subscription_id
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError
from tests.kit.telemetry_requests import answered
from tests.kit.wire import compact
from tests.oracle.subjects import Subject, run_subjects

MAX_BYTES = 100
START_MS = 1_700_000_000_000
CONFIG_CODES = {"ConfigException": 40, "InvalidConfigurationException": 40, "InvalidRequestException": 42}

CLIENTS = [
    ("producer-1", Connection("c", "L", "u", "127.0.0.1", 40001, "apache-kafka-java", "4.3.1", 1)),
    ("consumer-ä", Connection("c", "L", "u", "2001:db8::7", 50002, "librdkafka", "2.16.0", 2)),
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
            parse_subscription(name, values)
        except InvalidSubscriptionError as exc:
            return int(exc.code), str(exc)
        self.rules.replace_all({**self.rules.resources, name: values}, self.now_ms)
        return 0, None

    def answer(self, api_key: int, body: bytes, client: int) -> bytes:
        client_id, connection = CLIENTS[client]
        caller = Caller(connection, client_id, str(client))
        return answered(self.receiver, api_key, body, caller, self.now_ms).body


STEPS = 30
IDS = [bytes.fromhex(f"{n:x}d{n:x}2a3b4c5d64e4f8071a2b3c4d5e6f7"[:30].ljust(32, "9")) for n in range(1, 5)]
RESERVED = [bytes(16), bytes(15) + b"\x01"]
PREFIXES = [
    "org.apache.kafka.",
    "org.apache.kafka.producer.",
    "org.apache.kafka.consumer.",
    "org.apache.kafka.producer.node.request.latency",
    "métrique",
    "Aa",
    "BB",
    "*",
    *(f"org.apache.kafka.consumer.fetch.manager.{n}" for n in range(20)),
]
CRITERIA = [
    "client_id=producer-.*",
    "client_id=.*",
    "client_software_name=apache-kafka-java",
    "client_software_version=[0-9.]+",
    r"client_source_address=127\.0\.0\.\d+",
    "client_source_address=2001:db8:0:0:0:0:0:7",
    "client_source_port=4.*",
    f"client_instance_id={uuid_text(IDS[0])}",
    "client_id=[Pp]roducer-(?:1|2)",
]
INVALID = [
    {"interval.ms": "99"},
    {"interval.ms": "a"},
    {"metrics": "a,,b"},
    {"match": "client_id"},
    {"match": "client_id=["},
    {"match": "user=.*"},
    {"interval": "1000"},
]


class Case:
    """One sequence. `differences` lists unequal results that are no recorded deviation."""

    def __init__(self, kafka: Kafka, rng: random.Random) -> None:
        self.differences: list[str] = []
        self.deviations = 0
        self._rng = rng
        self._broker = Broker(kafka)
        self._ours = Ours(lambda: rng.randbytes(16))

    def run(self) -> None:
        steps = [self._update] * 3 + [self._get] * 6 + [self._push] * 10 + [self._pass_time] * 6 + [self._disconnect]
        with closing(self._broker):
            for _ in range(STEPS):
                self._rng.choice(steps)()

    def _same(self, what: str, theirs: object, ours: object) -> None:
        if theirs != ours:
            self.differences.append(f"{what}: Kafka {theirs!r}, ours {ours!r}")

    def _pass_time(self) -> None:
        self._ours.now_ms += self._rng.choice([0, 1, 50, 99, 100, 101, 500, 999, 1000, 1500])
        self._broker.at(self._ours.now_ms)

    def _disconnect(self) -> None:
        client = self._rng.randrange(len(CLIENTS))
        self._broker.disconnected(client)
        self._ours.receiver.disconnected(str(client))

    def _update(self) -> None:
        rng = self._rng
        name = f"sub-{rng.randrange(4)}"
        values: dict[str, str] = {}
        if rng.random() < 0.7:
            values["metrics"] = ", ".join(rng.choices(PREFIXES, k=rng.choice([0, 1, 2, 3, 12, 13])))
        if rng.random() < 0.8:
            values["interval.ms"] = rng.choice(["100", "100", "1000", "500", "3600000"])
        if rng.random() < 0.5:
            values["match"] = ",".join(rng.choices(CRITERIA, k=rng.randint(1, 2)))
        if rng.random() < 0.15:
            values |= rng.choice(INVALID)
        if values != self._ours.rules.resources.get(name, {}):  # a broker that hears the same again counts a version
            self._same(f"update {values}", self._broker.update(name, values), self._ours.update(name, values))

    def _get(self) -> None:
        client_instance_id = self._rng.choice([*IDS, *IDS, *RESERVED])
        client = self._rng.randrange(len(CLIENTS))
        body = client_instance_id + b"\x00"
        theirs = self._broker.get(body, client)
        ours = self._ours.answer(GET_TELEMETRY_SUBSCRIPTIONS, body, client)
        what = f"get {client_instance_id.hex()} from {client}"
        self._same(what, self._comparable(theirs, client_instance_id), _get_fields(ours, client_instance_id))
        if client_instance_id != ZERO_ID:
            self._same_state(what, client_instance_id)

    def _comparable(self, body: bytes, asked_id: bytes) -> list[object]:
        """Kafka's answer without the covered prefixes that we omit."""
        fields = _get_fields(body, asked_id)
        metrics = fields[-1]
        assert isinstance(metrics, tuple)
        fields[-1] = without_covered(metrics)
        self.deviations += fields[-1] != metrics
        return fields

    def _push(self) -> None:
        rng = self._rng
        client_instance_id = rng.choice([*IDS, *IDS, *IDS, rng.choice(RESERVED)])
        client = rng.randrange(len(CLIENTS))
        terminating = rng.random() < 0.15
        body = self._push_body(client_instance_id, client, terminating)
        theirs = self._broker.push(body, client)
        ours = self._ours.answer(PUSH_TELEMETRY, body, client)
        what = f"push {body.hex()} from {client}"
        self._same(what, theirs, ours)
        code = Reader(theirs, 4).int16()
        # KAFKA-20898; and another connection, which may know the id, does not end an instance.
        is_refused = code not in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
        ours_kept = self._ours.rules.instances.touch(client_instance_id, self._ours.now_ms)
        is_of_other = code == ErrorCode.NONE and ours_kept is not None and ours_kept.connection_id != str(client)
        if terminating and ours_kept is not None and (is_refused or is_of_other):
            instance = self._broker.instance(client_instance_id)
            self._same(f"{what}: terminating", (True, False), (instance.terminating(), ours_kept.terminating))
            instance.terminating(False)
            self.deviations += 1
        self._same_state(what, client_instance_id)

    def _push_body(self, client_instance_id: bytes, client: int, terminating: bool) -> bytes:
        rng = self._rng
        subscription_id = self._subscription_id(client_instance_id, client) if rng.random() < 0.85 else 1234
        compression_type, payload = rng.choice(
            [
                (0, b""),
                (0, b"test-data"),
                (0, bytes(MAX_BYTES)),
                (0, bytes(MAX_BYTES + 1)),
                (1, gzip.compress(b"test-data", mtime=0)),
                (2, b"\x04\x0ctest"),  # snappy: 4 bytes, one literal
                (3, b""),
                (4, zstandard.compress(b"test-data")),
                (4, bytes(MAX_BYTES + 1)),
                (rng.choice([-1, 5, 100]), b"test-data"),
            ]
        )
        head = struct.pack(">16si?b", client_instance_id, subscription_id, terminating, compression_type)
        return head + compact(payload) + b"\x00"

    def _subscription_id(self, client_instance_id: bytes, client: int) -> int:
        """The valid id after all changes of the subscriptions."""
        client_id, connection = CLIENTS[client]
        if instance := self._ours.rules.instances.touch(client_instance_id, self._ours.now_ms):
            client_id, connection = instance.client_id, instance.connection
        attributes = attributes_of(client_instance_id, connection, client_id)
        selection = self._ours.rules.subscriptions.select(attributes)
        return instance_subscription_id(selection.crc, client_instance_id)

    def _same_state(self, what: str, client_instance_id: bytes) -> None:
        theirs = self._broker.instance(client_instance_id)
        ours = self._ours.rules.instances.touch(client_instance_id, self._ours.now_ms)
        self._same(
            f"{what}: state",
            theirs
            and (
                theirs.subscriptionId(),
                theirs.pushIntervalMs(),
                self._broker.metrics_of(theirs),
                theirs.terminating(),
                theirs.lastKnownError().code(),
            ),
            ours
            and (
                ours.subscription_id,
                ours.selection.interval_ms,
                list(ours.selection.metrics),
                ours.terminating,
                ours.last_known_error,
            ),
        )


def _get_fields(body: bytes, asked_id: bytes) -> list[object]:
    """A GetTelemetrySubscriptions response; a new id is compared only through the subscription id."""
    reader = Reader(body)
    throttle_ms, code = reader.int32(), reader.int16()
    client_instance_id, subscription_id = reader.uuid(), reader.int32() & 0xFFFF_FFFF
    if asked_id == ZERO_ID and code == 0:
        subscription_id ^= uuid_hash(client_instance_id)
        client_instance_id = ZERO_ID
    codecs = [reader.int8() for _ in range(reader.compact_array_length())]
    interval_ms, max_bytes, delta = reader.int32(), reader.int32(), reader.boolean()
    metrics = tuple(reader.compact_string() for _ in range(reader.compact_array_length()))
    reader.skip_tagged()
    fields = [throttle_ms, code, client_instance_id, subscription_id, codecs, interval_ms, max_bytes, delta]
    return [*fields, reader.remaining, metrics]


def check_fixed_deviations(kafka: Kafka) -> list[str]:
    """Checks our deliberate deviations that do not depend on earlier requests; returns those that no longer hold."""
    faults = []
    for what, payload, expected in (
        ("a bomb", zstandard.compress(bytes(10 * MAX_BYTES)), ErrorCode.INVALID_RECORD),
        ("junk", b"junk", ErrorCode.INVALID_RECORD),
        ("null metrics", None, None),
    ):
        broker, ours = Broker(kafka), Ours(lambda: IDS[3])
        subscribed = _get_fields(broker.get(IDS[0] + b"\x00", 0), IDS[0])
        ours.answer(GET_TELEMETRY_SUBSCRIPTIONS, IDS[0] + b"\x00", 0)
        head = struct.pack(">16sI?b", IDS[0], subscribed[3], False, 4)
        body = head + (b"\x00" if payload is None else compact(payload)) + b"\x00"
        try:
            theirs: int | None = Reader(broker.push(body, 0), 4).int16()
        except Py4JJavaError:
            theirs = None  # the connection is closed
        mine = Reader(ours.answer(PUSH_TELEMETRY, body, 0), 4).int16()
        broker.close()
        if (theirs, mine) != (expected, ErrorCode.NONE):
            faults.append(f"{what}: Kafka {theirs}, ours {mine}")
    return faults


def run(jvm: Jvm, seed: int, cases: int) -> tuple[list[str], int]:
    """The differences, and the number of deliberate deviations. Prints nothing."""
    kafka = Kafka(jvm)
    differences = check_fixed_deviations(kafka)
    deviations = 0
    for number in range(cases):
        case = Case(kafka, random.Random(f"{seed}/{number}"))
        case.run()
        differences += [f"case {number}: {difference}" for difference in case.differences]
        deviations += case.deviations
    return differences, deviations


if __name__ == "__main__":
    subjects: dict[str, Subject] = {"telemetry": lambda jvm, seed, cases: run(jvm, seed, cases)[0]}
    sys.exit(1 if run_subjects(subjects, int(sys.argv[1]), int(sys.argv[2])) else 0)
