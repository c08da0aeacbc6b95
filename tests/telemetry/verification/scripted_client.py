"""A client that does what KIP-714 asks of it, in virtual time, and the faults that it can be given."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from quota_metrics.kafka.primitives import Reader
from telemetry.verification.client_check import ClientCheck, Reply, Request
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from tests.kit.wire import write_compact_bytes

INTERVAL_MS, PATIENCE_MS = 1_000, 500
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
NAMES = ("org.apache.kafka.producer.connection.creation.total", "org.apache.kafka.producer.record.send.total")
_JITTERS = (0.7, 1.3, 0.9, 1.1, 0.6, 1.4)
_GZIP = 1


@dataclass
class ScriptedClient:
    """`fault`: what it does wrong; "" for nothing. Call `run`."""

    fault: str = ""
    check: ClientCheck = field(
        default_factory=lambda: ClientCheck(interval_ms=INTERVAL_MS, patience_ms=PATIENCE_MS, client_instance_id=ID)
    )
    now_ms: int = 1_000_000
    connection: int = 1
    client_instance_id: bytes = bytes(16)
    gets: int = 0
    pushes: int = 0
    sent: float = 0.0
    last_push_ms: int = 1_000_000

    def run(self) -> list[str]:
        """Lives until the check is over; returns the rules that were broken."""
        self.check.opened(self.connection)
        if self.fault == "begins with an id of its own":
            self.client_instance_id = bytes(15) + b"\x07"
        while not self.check.over and self._live_once():
            pass
        while not self.check.over:
            self._wait(100)
        return [verdict.rule for verdict in self.check.verdicts if verdict.outcome == "fail"]

    def _live_once(self) -> bool:
        """A subscription and the pushes under it; False once the client is closed."""
        self._get()
        if not self.metrics:
            if self.fault == "pushes although nothing is requested":
                self._push()
            self._wait(INTERVAL_MS)
            return True
        jitter = 1.0 if self.fault == "never jitters" else _JITTERS[self.gets % len(_JITTERS)]
        self._wait(int((0.1 if self.fault == "pushes at once" else jitter) * INTERVAL_MS))
        while not self.check.over:
            code = self._push()
            if code == 117 and self.fault != "pushes on after 117":
                return True
            if code == -1:
                return False
            if code in (89, 118):
                if self.fault == f"stops after {code}":
                    return False
                self._wait(10 if self.fault == f"retries at once after {code}" else INTERVAL_MS)
                return True
            if self.check.complete and self.pushes > 12:
                self._close()
                return False
            self._wait(INTERVAL_MS // 2 if self.fault == "pushes twice an interval" else INTERVAL_MS)
        return False

    def _close(self) -> None:
        if self.fault != "closes without a terminating push":
            self._push(terminating=True)
        if self.fault == "pushes after the terminating push":
            self._push()
        self.check.closed(self.connection, self.now_ms)

    def _wait(self, ms: int) -> None:
        self.now_ms += ms
        assert self.now_ms < 2_000_000, "the check does not end"
        self.check.tick(self.now_ms)

    def _get(self) -> None:
        self.gets += 1
        asked = bytes(16) if self.fault == "forgets its id" else self.client_instance_id
        reader = Reader(self._send(GET_TELEMETRY_SUBSCRIPTIONS, asked + b"\0").body, 6)
        self.client_instance_id, self.subscription_id = reader.uuid(), reader.int32()
        self.codecs = [reader.int8() for _ in range(reader.compact_array_length())]
        reader.skip(8)
        self.delta = reader.boolean()
        self.metrics = [reader.compact_string() for _ in range(reader.compact_array_length())]

    def _push(self, *, terminating: bool = False) -> int:
        self.pushes += 1
        subscription_id = 7 if self.fault == "makes up subscription ids" else self.subscription_id
        codec = _GZIP if _GZIP in self.codecs else 0
        if self.fault == "keeps to zstd":
            codec = 4
        payload = self._payload()
        data = gzip.compress(payload) if codec == _GZIP else payload
        if self.fault == "sends damaged gzip":
            data = data[:-1]
        body = bytearray(struct.pack(">16siBb", self.client_instance_id, subscription_id, terminating, codec))
        write_compact_bytes(body, data)
        body += b"\0"
        reply = self._send(PUSH_TELEMETRY, bytes(body[:9]) if self.fault == "truncates its pushes" else bytes(body))
        if reply.hang_up:
            self.check.closed(self.connection, self.now_ms)
            if self.fault == "does not come back":
                return -1
            self.connection += 1
            self.check.opened(self.connection)
            if self.fault == "takes a new id when it reconnects":
                self.client_instance_id = bytes(15) + b"\x08"
        self.last_push_ms = self.now_ms
        return int.from_bytes(reply.body[4:6], "big", signed=True)

    def _send(self, api_key: int, body: bytes) -> Reply:
        frame = struct.pack(">hhih", api_key, 0, 1, -1) + b"\0" + body
        return self.check.answer(Request(api_key, body, frame, self.connection, self.now_ms))

    def _payload(self) -> bytes:
        if self.fault == "sends JSON":
            return b'{"resourceMetrics": []}'
        data = MetricsData()
        metrics = data.resource_metrics.add().scope_metrics.add().metrics
        is_all = self.metrics == ["*"] or self.fault == "sends what was not requested"
        for name in NAMES if is_all else [name for name in NAMES if name.startswith(tuple(self.metrics))]:
            kind = metrics.add(name=name).sum
            kind.is_monotonic = True
            as_delta = self.delta != (self.fault == "swaps the temporality")
            kind.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                if as_delta
                else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
            self.sent += -1.0 if self.fault == "counts down" else 1.0
            started_ms = self.last_push_ms - 200 * (self.fault == "sends deltas that overlap") if self.delta else 1
            kind.data_points.add(
                start_time_unix_nano=started_ms * 1_000_000, time_unix_nano=self.now_ms * 1_000_000, as_double=self.sent
            )
        return data.SerializeToString()
