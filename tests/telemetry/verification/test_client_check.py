"""The check of KIP-714 clients: one that does all right passes each rule, each scripted fault breaks its own.

Then what producers are answered, by kio's schema of each version that they are offered.
"""

import gzip
import random
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from quota_metrics.kafka.primitives import ProtocolError, Reader
from telemetry.verification.client_check import TELEMETRY_MAX_BYTES, ClientCheck, Reply, Request
from telemetry.verification.findings import MAX_FRAME_SHOWN_BYTES, MEANINGS, KipRule, Outcome
from telemetry.verification.listener import PRODUCER_VERSIONS, answer_producer
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS, INIT_PRODUCER_ID, PRODUCE, PUSH_TELEMETRY
from tests.kit.kio_entities import decode, encode, message_type, random_entity
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


FAULTS = {
    "begins with an id of its own": {"first-get"},
    "forgets its id": {"instance-id"},
    "pushes at once": {"jitter"},
    "never jitters": {"jitter"},
    "pushes twice an interval": {"push-interval"},
    "makes up subscription ids": {"subscription-id"},
    "keeps to zstd": {"compression"},
    "sends damaged gzip": {"compression"},
    "sends JSON": {"payload"},
    "swaps the temporality": {"delta", "cumulative"},
    "sends deltas that overlap": {"delta"},
    "counts down": {"cumulative"},
    "pushes on after 117": {"unknown-subscription"},
    "sends what was not requested": {"requested-metrics"},
    "retries at once after 89": {"throttle"},
    "stops after 89": {"throttle"},
    "retries at once after 118": {"too-large"},
    "stops after 118": {"too-large"},
    "pushes although nothing is requested": {"no-metrics"},
    "takes a new id when it reconnects": {"reconnect", "instance-id"},
    "does not come back": {"reconnect"},
    "closes without a terminating push": {"terminating-push"},
    "pushes after the terminating push": {"terminating-push"},
    "truncates its pushes": {"readable", "jitter"},  # no push that can be read ever comes
}


def test_client_that_does_all_right_passes_each_rule() -> None:
    client = ScriptedClient()
    assert client.run() == []
    assert {verdict.outcome for verdict in client.check.verdicts} == {Outcome.PASS}
    assert [verdict.rule for verdict in client.check.verdicts] == list(KipRule) == list(MEANINGS)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_breaks_its_own_rule_and_no_other(fault: str) -> None:
    assert set(ScriptedClient(fault).run()) == FAULTS[fault]


def test_all_rules_have_a_fault() -> None:
    assert set().union(*FAULTS.values()) == set(KipRule)


def test_violation_names_the_frame_that_broke_the_rule() -> None:
    client = ScriptedClient("sends JSON")
    client.run()
    (verdict,) = [verdict for verdict in client.check.verdicts if verdict.rule is KipRule.PAYLOAD]
    assert verdict.frame.startswith(PUSH_TELEMETRY.to_bytes(2, "big"))
    assert verdict.frame_bytes == len(verdict.frame)


def test_frame_of_a_push_that_is_too_large_is_shown_in_part() -> None:
    client = ScriptedClient()
    client.check.opened(1)
    client.check.answer(Request(71, bytes(17), b"", 1, 0))
    size = TELEMETRY_MAX_BYTES + 1
    head = ID + (0x0714_0001).to_bytes(4, "big") + b"\0\0"
    body = head + bytes([size + 1 & 0x7F | 0x80, size + 1 >> 7 & 0x7F | 0x80, size + 1 >> 14]) + bytes(size) + b"\0"
    client.check.answer(Request(PUSH_TELEMETRY, body, body, 1, INTERVAL_MS))
    (verdict,) = [verdict for verdict in client.check.verdicts if verdict.rule is KipRule.TOO_LARGE]
    assert (len(verdict.frame), verdict.frame_bytes) == (MAX_FRAME_SHOWN_BYTES, len(body))


def test_client_that_never_comes_is_not_seen() -> None:
    check = ClientCheck(interval_ms=INTERVAL_MS, patience_ms=PATIENCE_MS, client_instance_id=ID)
    check.tick(10**9)
    assert not check.over
    assert {verdict.outcome for verdict in check.verdicts} == {Outcome.NOT_SEEN}


OFFERED = [(key, version) for key, (least, newest) in PRODUCER_VERSIONS.items() for version in range(least, newest + 1)]
API_NAMES = {PRODUCE: "produce", INIT_PRODUCER_ID: "init_producer_id"}


def request_of(key: int, version: int, seed: int) -> Any:
    return random_entity(random.Random(seed), message_type(API_NAMES[key], version, "request"))


@pytest.mark.parametrize("version", range(3, 13))
@given(seed=st.integers(0, 2**32))
def test_each_partition_is_acknowledged_unless_nobody_waits(version: int, seed: int) -> None:
    request = request_of(PRODUCE, version, seed)
    body = answer_producer(PRODUCE, version, encode(request))
    if not request.acks:
        assert body == b""
        return
    reported = decode(message_type("produce", version, "response"), body)
    assert [
        (topic.name, partition.index, partition.error_code.value)
        for topic in reported.responses
        for partition in topic.partition_responses
    ] == [(topic.name, partition.index, 0) for topic in request.topic_data for partition in topic.partition_data]


@pytest.mark.parametrize("version", range(5))
def test_a_producer_gets_an_id(version: int) -> None:
    body = answer_producer(INIT_PRODUCER_ID, version, encode(request_of(INIT_PRODUCER_ID, version, version)))
    reported = decode(message_type("init_producer_id", version, "response"), body)
    assert (reported.error_code.value, reported.producer_id, reported.producer_epoch) == (0, 1, 0)


@given(st.sampled_from(OFFERED), st.binary(max_size=80))
def test_random_bytes_raise_only_protocol_error(offered: tuple[int, int], body: bytes) -> None:
    try:
        answer_producer(*offered, body)
    except ProtocolError:
        return
