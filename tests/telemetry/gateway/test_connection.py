"""A proxied connection as a dialogue: bytes of a client and a broker in, bytes for both out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import ANONYMOUS, UNKNOWN, Connection, Exchange
from telemetry.gateway.connection import ProxiedConnection
from telemetry.gateway.exchanges import Limits
from telemetry.receiver.receiver import Answer, TelemetryReceiver
from telemetry.rules.client_instances import Caller
from telemetry.rules.client_metrics import PushRequest
from telemetry.wire.apis import APIS
from telemetry.wire.errors import ProtocolError

PUSH = struct.pack(">16siBb", b"\x07" * 16, 9, 0, 4) + b"\x05push\x00"
FACTS = Connection("c", "PLAINTEXT", ANONYMOUS, "10.0.0.1", 4000, UNKNOWN, UNKNOWN, 7)


class ScriptedReceiver(TelemetryReceiver):
    """Answers 71 at once and 72 after a flush, with bytes that tell what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bytes, str | None]] = []
        self.gone: list[str] = []
        self.software = ""

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        self.asked.append(("get", 71, body, caller.client_id))
        self.software = f"{caller.connection.software_name} {caller.connection.software_version}"
        return Answer(body=b"answer-71", after_flush=False, refusal=b"come-back")

    def answer_push(self, request: PushRequest, payload: bytes, now_ms: int) -> Answer:
        self.asked.append(("push", 72, payload, request.caller.client_id))
        return Answer(body=b"answer-72", after_flush=True, refusal=b"come-back")

    def answer_oversize(self, request: PushRequest, now_ms: int) -> Answer:
        self.asked.append(("oversize", 72, request.client_instance_id, request.caller.client_id))
        return Answer(body=b"too-large", after_flush=False, refusal=b"come-back")

    def disconnected(self, connection_id: str) -> None:
        self.gone.append(connection_id)


class Both:
    """The connection with its two streams recorded."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.receiver = ScriptedReceiver()
        self.seen: list[Exchange] = []
        self.connection = ProxiedConnection(
            facts=FACTS,
            connection_id="one",
            receiver=self.receiver,
            address_of=lambda node_id, host, port: ("gw", 20_000 + node_id),
            observe=self.seen.append,
            limits=limits or Limits(),
        )

    def client(self, data: bytes) -> bytes:
        self.connection.from_client(data, 5)
        return self.take_upstream()

    def broker(self, data: bytes) -> bytes:
        self.connection.from_upstream(data, 6)
        return self.take_client()

    def take_upstream(self) -> bytes:
        out, self.connection.to_upstream = b"".join(self.connection.to_upstream), []
        return out

    def take_client(self) -> bytes:
        out, self.connection.to_client = b"".join(self.connection.to_client), []
        return out

    def flush(self, ok: bool = True) -> bytes:
        assert self.connection.unflushed
        self.connection.unflushed = False
        self.connection.flushed(ok, 7)
        return self.take_client()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: int, version: int, correlation: int, body: bytes = b"", client_id: str | None = "app") -> bytes:
    encoded = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation, -1 if encoded is None else len(encoded)) + (encoded or b"")
    tags = b"\x00" if APIS[key].flexible(version) or (key == 18 and version >= 3) else b""
    return framed(head + tags + body)


def response(key: int, version: int, correlation: int, body: bytes = b"") -> bytes:
    tags = b"\x00" if APIS[key].flexible(version) and key != 18 else b""
    return framed(struct.pack(">i", correlation) + tags + body)


def local(correlation: int, body: bytes) -> bytes:
    return framed(struct.pack(">i", correlation) + b"\x00" + body)


def produce(version: int, correlation: int, acks: int, transactional_id: bytes = b"") -> bytes:
    tid = b""
    if version >= 9:
        tid = bytes([len(transactional_id) + 1]) + transactional_id
    elif version >= 3:
        tid = struct.pack(">h", len(transactional_id)) + transactional_id
    return request(0, version, correlation, tid + struct.pack(">h", acks) + b"records")


def produced(version: int, correlation: int, throttle_ms: int) -> bytes:
    if version >= 9:
        return response(0, version, correlation, b"\x01" + struct.pack(">i", throttle_ms) + b"\x00")
    return response(0, version, correlation, struct.pack(">ii", 0, throttle_ms))


def test_what_is_not_ours_passes_untouched() -> None:
    both = Both()
    ask, reported = request(12, 4, 1, b"heartbeat"), response(12, 4, 1, struct.pack(">ih", 0, 0) + b"\x00")
    assert both.client(ask) == ask
    assert both.broker(reported) == reported
    assert both.connection.idle


def test_a_local_answer_waits_for_the_responses_before_it() -> None:
    both = Both()
    first, second = request(12, 4, 1), request(12, 4, 3)
    assert both.client(first + request(71, 0, 2, b"get") + second) == first + second
    assert both.take_client() == b""
    one, two = response(12, 4, 1, b"\0\0\0\0one"), response(12, 4, 3, b"\0\0\0\0two")
    assert both.broker(one + two) == one + local(2, b"answer-71") + two
    assert both.receiver.asked == [("get", 71, b"get", "app")]


def test_a_local_answer_with_nothing_before_it_leaves_at_once() -> None:
    both = Both()
    assert both.client(request(71, 0, 9)) == b""
    assert both.take_client() == local(9, b"answer-71")


def test_a_push_is_acknowledged_only_when_it_is_flushed_and_holds_back_what_is_behind_it() -> None:
    both = Both()
    behind = request(12, 4, 2)
    assert both.client(request(72, 0, 1, PUSH) + behind) == behind
    reported = response(12, 4, 2, b"\0\0\0\0")
    assert both.broker(reported) == b""
    assert both.flush() == local(1, b"answer-72") + reported
    assert both.connection.idle


def test_a_push_that_could_not_be_written_is_asked_to_come_back() -> None:
    both = Both()
    both.client(request(72, 0, 1, PUSH))
    assert both.flush(ok=False) == local(1, b"come-back")


@pytest.mark.parametrize("version", range(14))
def test_acks_0_is_never_answered_and_counts_at_once(version: int) -> None:
    both = Both()
    ask = produce(version, 1, 0, b"tx" if version >= 3 else b"")
    assert both.client(ask) == ask
    assert both.connection.idle
    assert [(s.api_key, s.request_bytes, s.response_bytes) for s in both.seen] == [(0, len(ask) - 4, 0)]


@pytest.mark.parametrize("version", range(1, 14))
def test_throttle_time_of_produce_is_seen(version: int) -> None:
    both = Both()
    ask = produce(version, 1, -1)
    both.client(ask)
    reported = produced(version, 1, 1234)
    assert both.broker(reported) == reported
    (seen,) = both.seen
    assert seen == Exchange(ANONYMOUS, "app", "10.0.0.1", 7, 0, len(ask) - 4, len(reported) - 4, 1234, 6)


@pytest.mark.parametrize("version", range(1, 16))
def test_throttle_time_of_fetch_is_seen(version: int) -> None:
    both = Both()
    both.client(request(1, version, 1, b"fetch"))
    reported = response(1, version, 1, struct.pack(">i", 777) + b"x" * 100)
    assert both.broker(reported) == reported
    assert [s.throttle_ms for s in both.seen] == [777]


def test_an_unmatched_response_passes() -> None:
    both = Both()
    both.client(produce(9, 1, 0))
    reported = produced(9, 1, 0)
    assert both.broker(reported) == reported
    assert len(both.seen) == 1


def test_api_versions_newer_than_ours_gets_version_0s_answer() -> None:
    both = Both()
    assert both.client(request(18, 4, 1, b"\x05java\x063.7.0\x00")) != b""
    newer = framed(struct.pack(">hhih", 18, 5, 2, 3) + b"app\x00" + b"\x05java\x06abcde\x00")
    assert both.client(newer) == b""
    reported = both.broker(framed(struct.pack(">ih", 1, 0) + b"\x01" + struct.pack(">i", 0) + b"\x00"))
    assert reported.endswith(framed(struct.pack(">ihihhh", 2, 35, 1, 18, 0, 4)))


@pytest.mark.parametrize(
    ("name", "version", "noted"),
    [
        ("apache-kafka-java", "4.3.1", "apache-kafka-java 4.3.1"),
        ("-bad", "1", "unknown unknown"),
        ("", "", "unknown unknown"),
    ],
)
def test_software_comes_from_a_valid_api_versions_request(name: str, version: str, noted: str) -> None:
    both = Both()
    body = b"".join(bytes([len(t) + 1]) + t.encode() for t in (name, version)) + b"\x00"
    ask = request(18, 3, 1, body)
    assert both.client(ask) == ask
    both.client(request(71, 0, 2))
    assert both.receiver.software == noted


def test_a_push_too_large_to_hold_is_skipped_and_answered_at_its_end() -> None:
    """A Java client that gets a response while it still sends the request breaks off with IllegalStateException."""
    both, push = Both(Limits(max_held_request_bytes=1000)), request(72, 0, 1, b"h" * 300_000)
    for piece in (push[:200_000], push[200_000:-1]):
        assert both.client(piece) == b""
        assert both.take_client() == b""
        assert not both.connection.idle
    assert both.receiver.asked == []
    assert both.client(push[-1:]) == b""
    assert both.receiver.asked[0] == ("oversize", 72, b"h" * 16, "app")
    assert both.take_client() == local(1, b"too-large")
    assert both.connection.idle
    rest = request(12, 4, 2)
    whole = request(72, 0, 3, b"h" * 1_500)
    both = Both(Limits(max_held_request_bytes=1000))
    assert both.client(whole + rest) == rest


def test_only_what_is_kept_of_an_unfinished_request_counts() -> None:
    both, push = Both(Limits(max_held_request_bytes=1000)), request(18, 0, 1, bytes(500))
    both.client(push[:3])
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (1, 3)
    both.client(push[3:-1])
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (1, len(push) - 1)
    both.client(push[-1:] + push[:100])
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (2, 100)
    both.client(push[100:])
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (0, 0)
    both.client(request(12, 4, 2, bytes(100))[:-1])  # passes through
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (0, 0)
    both = Both(Limits(max_held_request_bytes=1000))
    both.client(request(72, 0, 1, b"h" * 300_000)[:-1])  # skipped
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (1, 0)


def test_a_connection_that_ends_keeps_nothing_of_its_unfinished_request() -> None:
    both = Both(Limits(max_held_request_bytes=1000))
    both.client(request(18, 0, 1, bytes(500))[:-1])
    assert both.connection.held_bytes > 500
    both.connection.closed()
    assert both.connection.held_bytes == 0


def test_a_broker_cannot_have_a_response_of_any_size_held() -> None:
    both = Both()
    both.client(request(3, 1, 1, b"\xff\xff\xff\xff"))
    with pytest.raises(ProtocolError, match="Metadata response of 2147483647 bytes"):
        both.broker(struct.pack(">ii", 2**31 - 1, 1) + bytes(100))


def test_metadata_names_the_gateway() -> None:
    both = Both()
    both.client(request(3, 1, 1, b"\xff\xff\xff\xff"))
    body = struct.pack(">i", 1) + struct.pack(">ih", 5, 2) + b"k1" + struct.pack(">ih", 9092, -1) + b"the rest"
    reported = both.broker(response(3, 1, 1, body))
    assert b"k1" not in reported
    assert struct.pack(">ih", 5, 2) + b"gw" + struct.pack(">i", 20_005) in reported
    assert reported.endswith(b"the rest")


def test_a_closed_connection_is_told_to_the_door() -> None:
    both = Both()
    both.connection.closed()
    assert both.receiver.gone == ["one"]


@pytest.mark.parametrize(
    "data",
    [
        framed(b"short"),
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", 1, 16, 1, -1)),
        framed(struct.pack(">hhih", 3, 1, 1, 30_000)),
        framed(struct.pack(">hhih", 72, 1, 1, -1) + b"\x00"),
        framed(struct.pack(">hhih", 0, 9, 1, -1) + b"\x00"),
    ],
)
def test_requests_that_are_none_close_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Both().client(data)


def test_requests_in_flight_are_bounded() -> None:
    both = Both(Limits(max_in_flight=3))
    both.client(request(12, 4, 0) + request(71, 0, 1) * 2)
    with pytest.raises(ProtocolError, match="in flight"):
        both.client(request(71, 0, 3))


DIALOGUE = [
    (request(18, 3, 1, b"\x05java\x061.2.3\x00"), framed(struct.pack(">ih", 1, 0) + b"\x01\0\0\0\0\x00")),
    (
        request(3, 9, 2, b"topics"),
        response(
            3,
            9,
            2,
            struct.pack(">i", 0)
            + b"\x02"
            + struct.pack(">i", 1)
            + b"\x03k1"
            + struct.pack(">i", 9)
            + b"\x00\x00"
            + b"rest",
        ),
    ),
    (produce(9, 3, -1), produced(9, 3, 5)),
    (produce(8, 4, 0), b""),
    (request(71, 0, 5, b"get"), None),
    (request(1, 12, 6, b"fetch"), response(1, 12, 6, struct.pack(">i", 9) + b"r" * 300)),
    (request(72, 0, 7, PUSH), None),
    (request(1, 12, 8, b"fetch"), response(1, 12, 8, struct.pack(">i", 0) + b"s" * 30)),
]


def played(cuts: list[int]) -> tuple[bytes, bytes, list[int]]:
    """Both streams through the connection in pieces; flushed whenever it asks."""
    both = Both()
    ups = downs = b""
    sent = b"".join(ask for ask, _ in DIALOGUE)
    reported = b"".join(answer for _, answer in DIALOGUE if answer)
    at = 0
    for cut in [*cuts, len(sent)]:
        ups += both.client(sent[at : at + cut])
        at += cut
    downs += both.take_client()
    at = 0
    for index, cut in enumerate([*cuts, len(reported)]):
        downs += both.broker(reported[at : at + cut])
        at += cut
        if both.connection.unflushed and index % 2:
            downs += both.flush()
    if both.connection.unflushed:
        downs += both.flush()
    return ups, downs, [s.throttle_ms for s in both.seen]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=40))
def test_any_cutting_of_both_streams_gives_the_same_dialogue(cuts: list[int]) -> None:
    assert played(cuts) == played([])


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=6), st.lists(st.binary(max_size=100), max_size=6))
def test_junk_from_either_side_is_passed_or_a_protocol_error(asked: list[bytes], reported: list[bytes]) -> None:
    both = Both()
    both.client(request(3, 9, 1, b"topics") + produce(13, 2, 1) + request(1, 12, 3))
    try:
        for piece in reported:
            both.broker(piece)
        for piece in asked:
            both.client(framed(piece) if piece[:1] < b"\x80" else piece)
    except ProtocolError:
        pass


# Without a broker behind


class Alone(Both):
    """A connection that is answered here or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = ProxiedConnection(
            facts=FACTS,
            connection_id="one",
            receiver=self.receiver,
            address_of=lambda node_id, host, port: ("gw", 20_000 + node_id),
            observe=self.seen.append,
            limits=Limits(max_held_request_bytes=1000),
            local={key: lambda version, body: b"%d:" % version + body for key in (3, 18, 32)},
        )

    def ask(self, data: bytes) -> bytes:
        assert self.client(data) == b""
        return self.take_client()


@pytest.mark.parametrize(("key", "version"), [(3, 1), (3, 12), (18, 0), (32, 1), (32, 4)])
def test_what_is_known_is_answered_here(key: int, version: int) -> None:
    alone = Alone()
    assert alone.ask(request(key, version, 7, b"asked")) == response(key, version, 7, b"%d:asked" % version)
    assert alone.connection.idle


def test_api_versions_is_answered_here_and_tells_of_the_software() -> None:
    alone = Alone()
    body = b"\x05java\x063.7.0\x00"
    assert alone.ask(request(18, 3, 1, body)) == response(18, 3, 1, b"3:" + body)
    newer = framed(struct.pack(">hhih", 18, 5, 2, 3) + b"app\x00" + b"\x05java\x06abcde\x00")
    assert alone.ask(newer) == framed(struct.pack(">ihihhh", 2, 35, 1, 18, 0, 4))
    alone.ask(request(71, 0, 3))
    assert alone.receiver.software == "java 3.7.0"


def test_answers_keep_the_order_of_requests_behind_a_push() -> None:
    alone = Alone()
    assert alone.ask(request(72, 0, 1, PUSH) + request(3, 12, 2, b"asked")) == b""
    assert alone.flush() == local(1, b"answer-72") + response(3, 12, 2, b"12:asked")


@pytest.mark.parametrize("key", [0, 1, 12, 44])
def test_anything_else_closes_the_connection(key: int) -> None:
    with pytest.raises(ProtocolError, match="no broker behind"):
        Alone().client(request(key, 1, 1, b"body"))


def test_a_long_request_closes_the_connection_but_a_push_is_told_of() -> None:
    assert Alone().ask(request(72, 0, 1, bytes(2000))) == local(1, b"too-large")
    with pytest.raises(ProtocolError, match="Metadata request of"):
        Alone().client(request(3, 12, 1, bytes(2000)))
