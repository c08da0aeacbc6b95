"""A proxied connection without sockets: bytes of a client and a broker in, bytes for both out."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import ANONYMOUS, UNKNOWN, Exchange
from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.connection import ConnectionLimits
from tests.telemetry.gateway.dialogue import PUSH, Both, SaslDialogue, framed, produce, produced, request, response


def test_local_answer_waits_for_earlier_responses() -> None:
    both = Both()
    first, second = request(12, 4, 1), request(12, 4, 3)
    assert both.client(first + request(71, 0, 2, b"get") + second) == first + second
    assert both.take_client() == b""
    earlier, later = response(12, 4, 1, b"\0\0\0\0one"), response(12, 4, 3, b"\0\0\0\0two")
    assert both.broker(earlier + later) == earlier + response(72, 0, 2, b"answer-71") + later
    assert both.receiver.asked == [("get", 71, b"get", "app")]


def test_a_null_client_id_is_an_empty_one() -> None:
    both = Both()
    both.client(request(71, 0, 1, b"get", client_id=None))
    assert both.receiver.asked == [("get", 71, b"get", "")]  # RequestHeader.parse: `client_id=.*` matches it


@pytest.mark.parametrize(("ok", "answer"), [(True, b"answer-72"), (False, b"come-back")])
def test_push_is_answered_after_flush_and_delays_later_responses(ok: bool, answer: bytes) -> None:
    both = Both()
    behind = request(12, 4, 2)
    assert both.client(request(72, 0, 1, PUSH) + behind) == behind
    reported = response(12, 4, 2, b"\0\0\0\0")
    assert both.broker(reported) == b""
    assert not both.connection.idle
    assert both.flush(ok) == response(72, 0, 1, answer) + reported
    assert both.connection.idle


def test_response_before_an_earlier_one_is_refused() -> None:
    both = Both()
    both.client(request(12, 4, 1) + request(3, 9, 2))
    with pytest.raises(ProtocolError, match="answers request 2 before an earlier one"):
        both.broker(response(3, 9, 2, b"addresses of brokers"))


@pytest.mark.parametrize("version", range(14))
def test_acks_0_produce_is_counted_without_a_response(version: int) -> None:
    """A broker that answers it nevertheless is forwarded."""
    both = Both()
    ask = produce(version, 1, 0, b"tx" if version >= 3 else b"")
    assert both.client(ask) == ask
    assert both.connection.idle
    reported = produced(version, 1, 0)
    assert both.broker(reported) == reported
    assert [(s.api_key, s.request_bytes, s.response_bytes) for s in both.seen] == [(0, len(ask) - 4, 0)]


@pytest.mark.parametrize(("key", "version"), [*((0, v) for v in range(1, 14)), *((1, v) for v in range(1, 16))])
def test_throttle_time_of_produce_and_fetch_is_recorded(key: int, version: int) -> None:
    both = Both()
    if key == 0:
        ask, reported = produce(version, 1, -1), produced(version, 1, 1234)
    else:
        ask = request(1, version, 1, b"fetch")
        reported = response(1, version, 1, struct.pack(">i", 1234) + b"x" * 100)
    both.client(ask)
    assert both.broker(reported) == reported
    (seen,) = both.seen
    assert seen == Exchange(ANONYMOUS, "app", "10.0.0.1", 7, key, len(ask) - 4, len(reported) - 4, 1234, 6, (), 6)


@pytest.mark.parametrize(
    ("throttles_ms", "muted_from_ms"),
    [
        ([800] * 20, [min(number * 800, 10_000) for number in range(20)]),
        ([30_000, 100, 100], [0, 10_000, 10_000]),  # a long one is not shortened by a later one
    ],
)
def test_throttle_times_of_one_connection_do_not_overlap(throttles_ms: list[int], muted_from_ms: list[int]) -> None:
    """The broker muted it between these responses, which were read late, all at once."""
    both = Both()
    both.client(b"".join(produce(9, number, -1) for number in range(len(throttles_ms))))
    both.broker(b"".join(produced(9, number, throttle_ms) for number, throttle_ms in enumerate(throttles_ms)))
    assert [s.now_ms for s in both.seen] == [both.now_ms] * len(throttles_ms)
    assert [s.muted_from_ms - both.now_ms for s in both.seen] == muted_from_ms


def test_newer_api_versions_request_gets_version_0_response() -> None:
    both = Both()
    assert both.client(request(18, 4, 1, b"\x05java\x063.7.0\x00")) != b""
    newer = framed(struct.pack(">hhih", 18, 5, 2, 3) + b"app\x00" + b"\x05java\x06abcde\x00")
    assert both.client(newer) == b""
    reported = both.broker(framed(struct.pack(">ih", 1, 0) + b"\x01" + struct.pack(">i", 0) + b"\x00"))
    assert reported.endswith(framed(struct.pack(">ihihhh", 2, 35, 1, 18, 0, 4)))


@pytest.mark.parametrize(
    ("name", "version", "is_valid"), [("java", "4.3.1", True), ("-bad", "1", False), ("", "", False)]
)
def test_software_comes_from_a_valid_api_versions_request(name: str, version: str, is_valid: bool) -> None:
    both = Both()
    body = b"".join(bytes([len(t) + 1]) + t.encode() for t in (name, version)) + b"\x00"
    ask = request(18, 3, 1, body)
    assert both.client(ask) == ask
    both.client(request(71, 0, 2))
    client = both.receiver.client
    assert (client.software_name, client.software_version) == ((name, version) if is_valid else (UNKNOWN, UNKNOWN))


def test_oversize_push_is_skipped_and_answered_at_its_end() -> None:
    """A Java client that gets a response while it still sends the request throws IllegalStateException."""
    both, push = Both(ConnectionLimits(max_held_request_bytes=1000)), request(72, 0, 1, b"h" * 300_000)
    for piece in (push[:200_000], push[200_000:-1]):
        assert both.client(piece) == b""
        assert both.take_client() == b""
        assert not both.connection.idle
    assert both.receiver.asked == []
    assert both.client(push[-1:]) == b""
    assert both.receiver.asked[0] == ("oversize", 72, b"h" * 16, "app")
    assert both.take_client() == response(72, 0, 1, b"too-large")
    assert both.connection.idle
    rest = request(12, 4, 2)
    whole = request(72, 0, 3, b"h" * 1_500)
    both = Both(ConnectionLimits(max_held_request_bytes=1000))
    assert both.client(whole + rest) == rest


def test_only_buffered_bytes_of_unfinished_request_count_as_held() -> None:
    both, push = Both(ConnectionLimits(max_held_request_bytes=1000)), request(18, 0, 1, bytes(500))
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
    both = Both(ConnectionLimits(max_held_request_bytes=1000))
    both.client(request(72, 0, 1, b"h" * 300_000)[:-1])  # skipped
    assert (both.connection.unfinished_request, both.connection.held_bytes) == (1, 0)


def test_closed_connection_releases_held_bytes_and_is_reported_to_the_receiver() -> None:
    both = Both(ConnectionLimits(max_held_request_bytes=1000))
    both.client(request(18, 0, 1, bytes(500))[:-1])
    assert both.connection.held_bytes > 500
    both.connection.closed()
    assert (both.connection.held_bytes, both.receiver.gone) == (0, ["one"])


def test_oversized_metadata_response_raises_protocol_error() -> None:
    both = Both()
    both.client(request(3, 1, 1, b"\xff\xff\xff\xff"))
    with pytest.raises(ProtocolError, match="Metadata response of 2147483647 bytes"):
        both.broker(struct.pack(">ii", 2**31 - 1, 1) + bytes(100))


def test_metadata_advertises_the_gateway_also_behind_tagged_fields_of_the_header() -> None:
    both, tags = Both(), b"\x01\x63\x03new"  # a newer broker may send some in a version that is known (KIP-482)
    both.client(request(3, 9, 1, b"topics") + request(12, 4, 2))
    heard = [
        framed(struct.pack(">i", 1) + tags + struct.pack(">iBi3siH", 0, 2, 5, host, port, 0) + b"rest")
        for host, port in ((b"\x03k1", 9092), (b"\x03gw", 20_005))
    ]
    heartbeat = framed(struct.pack(">i", 2) + tags + struct.pack(">ih", 777, 0) + b"\0")
    assert both.broker(heard[0] + heartbeat) == heard[1] + heartbeat
    assert [s.throttle_ms for s in both.seen] == [0, 0]


@pytest.mark.parametrize(
    "data",
    [
        framed(b"short"),
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", 1, 19, 1, -1)),
        framed(struct.pack(">hhih", 3, 1, 1, 30_000)),
        framed(struct.pack(">hhih", 72, 1, 1, -1) + b"\x00"),
        framed(struct.pack(">hhih", 0, 9, 1, -1) + b"\x00"),
    ],
)
def test_malformed_requests_raise_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Both().client(data)


def test_requests_in_flight_are_bounded() -> None:
    both = Both(ConnectionLimits(max_in_flight=4))
    asks = [request(12, 4, number) for number in range(9)]
    assert both.client(b"".join(asks[:6]) + asks[6][:20]) == b"".join(asks[:4])
    connection = both.connection
    assert (connection.is_crowded, connection.has_room, connection.unfinished_request) == (True, False, 0)
    assert both.client(asks[6][20:] + asks[7] + asks[8][:5]) == b""  # what was on its way
    both.broker(response(12, 4, 0, b"ok"))
    assert (connection.is_crowded, connection.has_room) == (True, False)
    both.broker(response(12, 4, 1, b"ok"))
    assert connection.has_room
    assert both.client(b"") == b"".join(asks[4:6])
    for number in range(2, 6):
        assert both.broker(response(12, 4, number, b"ok")) == response(12, 4, number, b"ok")
    assert both.client(b"") == b"".join(asks[6:8])
    assert (connection.is_crowded, connection.unfinished_request > 0) == (False, True)
    assert both.client(asks[8][5:]) == asks[8]
    assert len(both.seen) == 6


def test_known_pushes_in_flight_are_bounded() -> None:
    both = Both(ConnectionLimits(max_in_flight=3))
    both.client(request(72, 0, 0, PUSH))
    both.flush()
    both.client(b"".join(request(72, 0, number, PUSH) for number in range(1, 6)))
    assert (both.connection.is_crowded, len(both.receiver.asked)) == (True, 4)
    both.flush()
    both.client(b"")
    assert (both.connection.is_crowded, len(both.receiver.asked)) == (False, 6)
    assert both.flush() == response(72, 0, 4, b"answer-72") + response(72, 0, 5, b"answer-72")


def created(*names: bytes) -> bytes:
    """The body of CreateTopics 2 for topics of three partitions each."""
    topics = b"".join(struct.pack(">h", len(name)) + name + struct.pack(">ihii", 3, 1, 0, 0) for name in names)
    return struct.pack(">i", len(names)) + topics + struct.pack(">i?", 1000, False)


def test_created_topics_that_the_controller_accepted_are_observed() -> None:
    both = Both()
    ask = request(19, 2, 1, created(b"a", b"b"))
    assert [both.client(ask[:20]), both.client(ask[20:])] == [b"", ask]
    results = b"".join(struct.pack(">h1shh", 1, name, error, -1) for name, error in ((b"a", 89), (b"b", 0)))
    reported = response(19, 2, 1, struct.pack(">ii", 700, 2) + results)
    assert both.broker(reported) == reported
    assert [(s.api_key, s.throttle_ms, s.changes) for s in both.seen] == [(19, 700, (("b", 3, 3, False),))]


def test_request_that_is_too_large_to_be_read_is_forwarded_and_unknown() -> None:
    both = Both(ConnectionLimits(max_held_request_bytes=100))
    ask = request(19, 2, 1, created(b"a" * 200))
    assert both.client(ask) == ask
    both.broker(response(19, 2, 1, struct.pack(">iihshh", 0, 1, 1, b"a", 0, -1)))
    assert [s.changes for s in both.seen] == [(("a", -1, -1, False),)]
    both.client(request(20, 1, 2, struct.pack(">ih", 1, 200) + b"a" * 200 + bytes(4)))
    both.broker(response(20, 1, 2, b"?"))
    assert both.seen[1].changes == (("", -1, -1, False),)


DIALOGUE = [
    (request(18, 3, 1, b"\x05java\x061.2.3\x00"), framed(struct.pack(">ih", 1, 0) + b"\x01\0\0\0\0\x00")),
    (
        request(3, 9, 2, b"topics"),
        response(3, 9, 2, struct.pack(">iBi3siH", 0, 2, 1, b"\x03k1", 9, 0) + b"rest"),
    ),
    (produce(9, 3, -1), produced(9, 3, 5)),
    (produce(8, 4, 0), b""),
    (request(71, 0, 5, b"get"), None),
    (request(1, 12, 6, b"fetch"), response(1, 12, 6, struct.pack(">i", 9) + b"r" * 300)),
    (request(72, 0, 7, PUSH), None),
    (request(1, 12, 8, b"fetch"), response(1, 12, 8, struct.pack(">i", 0) + b"s" * 30)),
]


def played(cuts: list[int]) -> tuple[bytes, bytes, list[int]]:
    """Feeds both streams through the connection in pieces, and flushes on each request to flush."""
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


@given(st.lists(st.integers(0, 60), max_size=40))
def test_dialogue_does_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    assert played(cuts) == played([])


# Without a broker


class Alone(Both):
    """A connection without a broker: the gateway answers its requests or closes it."""

    def __init__(self) -> None:
        super().__init__(
            ConnectionLimits(max_held_request_bytes=1000),
            local={key: lambda version, body: b"%d:" % version + body for key in (3, 18, 32)},
        )

    def ask(self, data: bytes) -> bytes:
        assert self.client(data) == b""
        return self.take_client()


@pytest.mark.parametrize(("key", "version"), [(3, 1), (3, 12), (18, 0), (18, 3), (32, 1), (32, 4)])
def test_known_requests_are_answered_locally(key: int, version: int) -> None:
    alone, body = Alone(), b"\x05java\x063.7.0\x00"
    assert alone.ask(request(key, version, 7, body)) == response(key, version, 7, b"%d:" % version + body)
    assert alone.connection.idle


def test_local_answers_keep_request_order_behind_a_push() -> None:
    alone = Alone()
    assert alone.ask(request(72, 0, 1, PUSH) + request(3, 12, 2, b"asked")) == b""
    assert alone.flush() == response(72, 0, 1, b"answer-72") + response(3, 12, 2, b"12:asked")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        *((request(key, 1, 1, b"body"), "without a broker") for key in (0, 1, 12, 44)),
        (request(3, 12, 1, bytes(2000)), "Metadata request of"),
    ],
)
def test_unsupported_or_oversize_request_without_broker_raises_protocol_error(asked: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Alone().client(asked)


ANSWER = response(18, 0, 0, struct.pack(">hihhh", 0, 1, 18, 0, 4))


def test_keep_alive_is_invisible_to_client_and_meter() -> None:
    both = Both()
    both.client(request(72, 0, 1, PUSH))
    both.flush()
    both.connection.keep_alive()
    assert both.take_upstream() == request(18, 0, 0)
    was_idle = both.connection.idle
    assert both.broker(ANSWER[:7]) + both.broker(ANSWER[7:]) == b""
    assert (was_idle, both.connection.idle) == (False, True)
    assert both.seen == []


def test_requests_behind_keep_alive_are_answered_in_order() -> None:
    both = Both()
    both.connection.keep_alive()
    both.take_upstream()
    ask, reported = request(12, 4, 2), response(12, 4, 2, b"\0\0\0\0\0\0\0")
    assert both.client(request(71, 0, 1, b"get") + ask) == ask
    assert both.take_client() == b""
    assert both.broker(ANSWER + reported) == response(72, 0, 1, b"answer-71") + reported
    assert len(both.seen) == 1


@pytest.mark.parametrize("begun", [request(12, 4, 1), request(72, 0, 1, PUSH)[:20]])
def test_keep_alive_is_not_sent_during_requests(begun: bytes) -> None:
    both = Both()
    both.client(begun)
    both.connection.keep_alive()
    assert both.take_upstream() == b""


@pytest.mark.parametrize(("authenticated", "after_s", "sent"), [(False, 0, False), (True, 0, True), (True, 9, False)])
def test_keep_alive_requires_a_valid_session(authenticated: bool, after_s: int, sent: bool) -> None:
    dialogue = SaslDialogue()
    if authenticated:
        dialogue.scram(lifetime_ms=5_000)
    dialogue.session_s += after_s
    dialogue.connection.keep_alive()
    assert bool(dialogue.connection.to_upstream) is sent
