"""Fuzz targets. Each accepts bytes and returns, or raises an error that it documents.

Anything else (another exception, a crash, a hang, memory without bound) is a finding.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from exporters.model import ANONYMOUS, UNKNOWN, Connection, Push
from exporters.spool.records import ROW_TYPES, decode_instance, decode_push, decode_rows, scan
from quota_metrics.config.entities import entity_of
from quota_metrics.kafka.frames import decoded
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.decode.bounds import DecodeError, DecompressError, OverBudget, PayloadLimits, TooLarge, decompress
from telemetry.decode.decoder import DecodedPush, Decoder
from telemetry.decode.otlp import decode
from telemetry.decode.series import ClientBudgets, KnownSeries, identity
from telemetry.gateway.connection import ConnectionLimits, ProxiedConnection
from telemetry.gateway.networks import LOOPBACK, Administrators, networks_of
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.gateway.topic_sampling import TopicSampler
from telemetry.ingest.arrow_tables import points_table
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from telemetry.wire.address_rewrites import REWRITES, Rewrite, produce
from telemetry.wire.apis import APIS, PRODUCE
from tests.fuzz.admin_targets import admin_targets
from tests.fuzz.security_targets import security_targets
from tests.fuzz.seeds import DESCRIBE_QUOTAS, exchanges, mutated, redirected, request_frame, seeds
from tests.kit.wire import write_compact_bytes

FACTS = Connection("fuzz", "PLAINTEXT", ANONYMOUS, "127.0.0.1", 1, UNKNOWN, UNKNOWN, 1)
MAX_PAYLOAD_BYTES = 1 << 20
EACH = TopicSampler(1.0, random.random, lambda _: None)  # reads the topics of each frame
LIMITS = ConnectionLimits(max_request_bytes=1 << 24, max_held_request_bytes=1 << 16, topics=EACH)
NOW_MS = 1_795_000_000_000
_SUBSCRIPTION_ID_AT = 31  # of a GetTelemetrySubscriptions response: behind length, header, time, code and instance id

Target = Callable[[bytes], None]
REWRITTEN: dict[int, Rewrite] = {
    **REWRITES,
    PRODUCE: lambda body, version, address_of: produce(body, 0, version, address_of)[0],
}


class Targets:
    """The targets by name, and which seeds each begins with."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._directory = tempfile.TemporaryDirectory(prefix="headroom-fuzz-")
        self._rules = ClientMetrics(new_id=lambda: source.randbytes(16), max_instances=1000)
        self._rules.replace_all({"all": {"metrics": "*", "interval.ms": "100"}}, NOW_MS)
        self._receiver = TelemetryReceiver(self._rules, append=lambda *_: None, telemetry_max_bytes=MAX_PAYLOAD_BYTES)
        file = SubscriptionFile(Path(self._directory.name) / "subscriptions.yaml", self._rules, lambda: NOW_MS)
        self._sink = SinkAnswers("fuzz", file, Administrators(networks_of(LOOPBACK))).found_at("127.0.0.1", 9092, FACTS)
        self._known = KnownSeries(1 << 20, 3_600_000)
        self._templates, self._plain = (self._decoder(nbytes) for nbytes in (1 << 24, 0))
        found = seeds()
        self.by_name: dict[str, tuple[Target, list[bytes]]] = {
            "gateway request": (self._gateway, found["request"]),
            "sink request": (self._sink_request, found["request"]),
            "administration request": (self._sink_request, found["administration"]),
            "request of any API": (self._any_api, found["request"] + found["administration"]),
            "frame length": (self._length, found["request"]),
            "push": (self._push, found["compressed"]),
            "compressed payload": (self._compressed, found["compressed"]),
            "payload": (self._payload, found["payload"]),
            "pushed payload": (self._pushed, found["payload"]),
            "spool": (self._spool, found["request"]),
            "answer on quotas": (self._quotas, found["quotas"]),
        }
        self.by_name |= security_targets(source, self._connection) | admin_targets(source)
        for api, (request, response) in exchanges().items():
            self.by_name[f"broker response {api}"] = (partial(self._response, request), [response])
            key, version = map(int, api.split())
            if key in REWRITTEN:
                self.by_name[f"rewriting {api}"] = (partial(self._rewritten, key, version), [response])

    def _decoder(self, template_bytes: int) -> Decoder:
        return Decoder(
            max_decompressed_bytes=MAX_PAYLOAD_BYTES,
            limits=PayloadLimits(),
            known_series=self._known,
            max_template_bytes=template_bytes,
            client_budgets=ClientBudgets(),
        )

    def _connection(self, **extra: object) -> ProxiedConnection:
        return ProxiedConnection(
            facts=FACTS,
            connection_id=str(self._source.random()),
            receiver=self._receiver,
            address_of=lambda node_id, host, port: ("127.0.0.1", 1),
            observe=lambda _: None,
            limits=LIMITS,
            **extra,  # type: ignore[arg-type] # `local`, or nothing
        )

    def _gateway(self, data: bytes) -> None:
        self._talk(self._connection(), data)

    def _sink_request(self, data: bytes) -> None:
        self._talk(self._connection(local=self._sink), data)

    def _talk(self, connection: ProxiedConnection, data: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            self._feed(connection, data, NOW_MS)
        connection.closed()

    def _feed(self, connection: ProxiedConnection, data: bytes, now_ms: int) -> None:
        """In two pieces. Raises ProtocolError."""
        cut = self._source.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            connection.from_client(piece, now_ms)
            if connection.unflushed:
                connection.unflushed = False
                connection.flushed(True)
                connection.from_upstream(b"", now_ms)
                self._receiver.settled(True)
        assert self._receiver.counts.faults == 0, "an exception was answered with THROTTLING_QUOTA_EXCEEDED"

    def _any_api(self, data: bytes) -> None:
        whole = redirected(self._source, data)
        (self._gateway if self._source.random() < 0.5 else self._sink_request)(whole)

    def _push(self, data: bytes) -> None:
        """Of a client that is subscribed: first as it should be, then again, damaged, early and late."""
        instance_id, connection = self._source.randbytes(16), self._connection()
        self._feed(connection, request_frame(71, 0, instance_id + b"\0"), NOW_MS)
        subscription_id = connection.to_client[_SUBSCRIPTION_ID_AT:][:4]
        body = bytearray(instance_id + subscription_id + bytes([0, self._source.choice([4, 4, 0, 1, 2, 3, 5, 255])]))
        write_compact_bytes(body, data)
        frame, now_ms = request_frame(72, 0, bytes(body) + b"\0"), NOW_MS
        for _ in range(4):
            try:
                self._feed(connection, frame, now_ms)
            except ProtocolError:
                break
            now_ms += self._source.choice([0, 100, 1000])
            if self._source.random() < 0.5:
                frame = mutated(self._source, frame, [frame, data])
        connection.closed()

    def _length(self, data: bytes) -> None:
        """A frame that is announced too long, or of negative length, ends the connection before its first byte."""
        length = self._source.choice([-(2**31), -1, 0, LIMITS.max_request_bytes + 1, 2**31 - 1])
        connection = self._connection()
        try:
            connection.from_client(length.to_bytes(4, "big", signed=True) + data, NOW_MS)
        except ProtocolError:
            connection.closed()
            return
        raise AssertionError(f"a frame of {length} bytes was taken")

    def _response(self, request: bytes, data: bytes) -> None:
        """Responses to sent requests. Correlation id and length are mostly valid, so that the damage is in the body."""
        connection = self._connection()
        behind = (request[8:12] if self._source.random() < 0.9 else data[4:8]) + data[8:]
        length = len(behind).to_bytes(4, "big") if self._source.random() < 0.7 else data[:4]
        whole = length + behind
        cut = self._source.randrange(len(whole) + 1)
        try:
            for _ in range(self._source.randint(1, 3)):
                connection.from_client(request, NOW_MS)
            for piece in (whole[:cut], whole[cut:]):
                connection.from_upstream(piece, NOW_MS)
        except ProtocolError:
            pass
        connection.closed()

    def _rewritten(self, key: int, version: int, data: bytes) -> None:
        """The body alone, also read as another version of its API."""
        if self._source.random() < 0.3:
            version = self._source.randrange(APIS[key].max_version + 1)
        with contextlib.suppress(ProtocolError):
            REWRITTEN[key](data[8 + APIS[key].flexible(version) :], version, lambda node_id, host, port: (host, port))

    def _compressed(self, data: bytes) -> None:
        for compression_type in range(5):
            try:
                decompressed = decompress(compression_type, data, max_bytes=MAX_PAYLOAD_BYTES)
            except (DecompressError, TooLarge):
                continue
            assert len(decompressed) <= MAX_PAYLOAD_BYTES

    def _payload(self, data: bytes) -> None:
        push = Push(FACTS, "fuzz", b"i" * 16, NOW_MS, 1, False, 0, b"")
        with contextlib.suppress(DecodeError, OverBudget):
            decode(data, push, PayloadLimits(), frozenset())

    def _pushed(self, data: bytes) -> None:
        """Decodes each push twice, so that a template learned from the first is used for the second."""
        push = Push(FACTS, "fuzz", b"i" * 16, NOW_MS, 1, False, 0, data)
        for _ in range(2):
            outcome, refusal = self._templates.outcome(push)
            self._known.add(identity(push), outcome.decoded.series, NOW_MS)
            plain, plain_refusal = self._plain.outcome(push)
            assert (outcome.points, refusal) == (plain.points, plain_refusal)
            assert refusal is None or refusal.cause.startswith("cannot "), refusal  # else a bug that was caught
            if outcome.match is not None:
                assert _rows(outcome) == _rows(plain)

    def _spool(self, data: bytes) -> None:
        scan(data, 7, 100)
        of_rows = [partial(decode_rows, kind) for kind in ROW_TYPES]
        readers: list[Callable[[bytes], object]] = [decode_push, decode_instance, *of_rows]
        for read in readers:
            try:
                read(data)
            except (ValueError, TypeError):
                continue

    def _quotas(self, data: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            answer = decoded(DESCRIBE_QUOTAS, data)
            for entry in answer.entries or ():
                with contextlib.suppress(ValueError):
                    entity_of({part.entity_type: part.entity_name for part in entry.entity})


def _rows(outcome: DecodedPush) -> list[tuple[int, ...]]:
    """Of its points, in an order of their own: series, time, flags, the bits of the value."""
    table = points_table([outcome])[0]
    columns = [table[name].to_numpy().view(np.int64) for name in ("series_id", "ts", "value")]
    flags = table["flags"].to_pylist() if "flags" in table.column_names else [0] * len(table)  # absent: all are 0
    return sorted(zip(*(column.tolist() for column in columns), flags, strict=True))
