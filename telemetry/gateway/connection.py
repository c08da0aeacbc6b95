"""One client connection and its upstream connection, if any: decides what happens to each request. Sans-I/O.

Requests are forwarded to the broker, except GetTelemetrySubscriptions and PushTelemetry, which the telemetry receiver
answers. Responses are forwarded to the client, except those that name brokers or API versions, which are rewritten. A
connection's responses are sent in the order of its requests: a local answer waits for earlier responses, and later
responses wait until a push is in the spool.

Without a broker, `local` answers the APIs that it supports; other requests close the connection, as on a broker.

After each call the owner takes `to_upstream` and `to_client`; when `unflushed` is set it clears it, flushes the spool
and calls `flushed`. `unfinished_request` is the number of the partly received request that is not forwarded; 0: none.
`response_waits`: a broker's response is not at its end, perhaps because a local answer comes first.
`is_crowded`: so many requests are in flight that no further one is begun. The owner stops reading from the client, as
a broker does with a muted one, until `has_room`, and then calls `from_client(b"")`.

Nearly all pushes take a fast path, because their header bytes equal those of an earlier push on the same connection
(KnownPushes). It only skips parsing the header: rules, spool, queue and answer are the same as for other pushes.
"""

import dataclasses
import struct
from collections.abc import Mapping
from typing import Final

from exporters.model import Connection
from quota_metrics.kafka.primitives import ProtocolError, int16_at, int32_at
from telemetry.gateway.responses import (
    BrokerResponses,
    LocalAnswer,
    Observe,
    PendingRequest,
    PendingRequests,
    exchange_of,
)
from telemetry.gateway.security.client_identity import RAW_TOKEN, SASL, ClientIdentity, SaslSession
from telemetry.gateway.topic_sampling import SampledFrame, TopicSampler
from telemetry.receiver.telemetry_requests import Answer, TelemetryReceiver
from telemetry.subscriptions.kip714_rules import PushRequest
from telemetry.wire.address_rewrites import AddressOf
from telemetry.wire.apis import (
    API_VERSIONS,
    APIS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
    api_of,
)
from telemetry.wire.frames import (
    FORWARD,
    HOLD,
    LENGTH_BYTES,
    MAX_REQUEST_HEAD_BYTES,
    REQUEST_HEAD,
    REQUEST_HEAD_BYTES,
    SKIP,
    UNDECIDED,
    WATCH,
    FrameScanner,
    check_head,
    read_acks,
    request_body,
)
from telemetry.wire.mutations import MUTATING, MUTATIONS, UNREADABLE, requested_changes
from telemetry.wire.telemetry_messages import PUSH_HEAD, read_push, read_push_head

# KIP-511: in version 0.
API_VERSIONS_TOO_NEW: Final = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, APIS[API_VERSIONS].max_version)
_HELD: Final = frozenset({GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, API_VERSIONS})
_PUSH: Final = APIS[PUSH_TELEMETRY]
_PUSH_V0: Final = PUSH_TELEMETRY << 16  # api_key and api_version in one
_CORRELATION_ID_AT: Final = 8
_HEAD_AT: Final = 12  # the length of the client id
_CLIENT_ID_AT: Final = 14
_BEHIND_CLIENT_ID: Final = 1 + PUSH_HEAD.size  # no tagged fields, then the fields before the payload
_LEAST_BYTES: Final = _CLIENT_ID_AT + _BEHIND_CLIENT_ID + 3  # an empty payload takes one byte, as do the tagged fields
_MAX_PER_CONNECTION: Final = 256
_MAX_OF_ALL: Final = 65_536  # about 30 MB


class KnownHeads:
    """Counts the heads that the connections of a process remember, without the last one of each connection."""

    def __init__(self) -> None:
        self.count = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may do. All connections with this object share `known_heads` and `topics`.

    `topics` chooses the frames whose topics are read; None: no frame.
    """

    max_request_bytes: int = 104_857_600  # Kafka's socket.request.max.bytes
    max_response_bytes: int = 2**31 - 1
    max_held_request_bytes: int = 2_097_152  # fits a push of telemetry.max.bytes; longer are refused by their header
    max_in_flight: int = 2_000  # more wait in the sockets, as they do before a broker, where clients time them
    known_heads: KnownHeads = dataclasses.field(default_factory=KnownHeads)
    topics: TopicSampler | None = None


class ProxiedConnection(FrameScanner):
    """The state of one connection, and the scanner of its requests.

    If one of the `from_*` methods raises ProtocolError, both sides must be closed.
    """

    def __init__(
        self,
        *,
        facts: Connection,
        connection_id: str,
        receiver: TelemetryReceiver,
        address_of: AddressOf,
        observe: Observe,
        limits: ConnectionLimits,
        local: Mapping[int, LocalAnswer] | None = None,
        sasl: SaslSession | None = None,
    ) -> None:
        super().__init__(limits.max_request_bytes)
        self.to_upstream = self.to_client = b""
        self.unflushed = False
        self.unfinished_request = 0
        self.response_waits = self.is_crowded = False
        self._connection_id, self._receiver = connection_id, receiver
        self._observe, self._limits, self._max_in_flight = observe, limits, limits.max_in_flight
        self._local = local  # by API key; None: there is a broker
        self._now_ms = 0
        self._client = ClientIdentity(facts, connection_id, sasl)
        self._pending = PendingRequests()
        self._sasl = sasl  # None: the listener has no SASL
        self._held_keys = _HELD.union(SASL if sasl else (), MUTATIONS if local is None else local)
        self._key_and_version, self._api, self._holds = 1 << 32, _PUSH, True  # of the last request: none
        self._held: PendingRequest | None = None  # the arriving request, unless it is only forwarded
        self._too_large: PushRequest | None = None  # the same, when it is skipped
        self._client_id_end = 0  # of the held request: offset in its frame
        self._known_pushes = KnownPushes(limits.known_heads)
        self._topics = limits.topics
        self._sampled: SampledFrame | None = None  # the arriving Produce request, when its topics are read
        self._responses = BrokerResponses(
            self._pending,
            self._client,
            address_of=address_of,
            observe=observe,
            max_response_bytes=limits.max_response_bytes,
            topics=limits.topics,
        )

    def from_client(self, data: bytes, now_ms: int) -> bool:
        """Handles bytes from the client. Returns whether a request that is not forwarded is, or was, unfinished."""
        sasl = self._sasl
        self.is_crowded = False
        if self.between_frames and (sasl is None or sasl.is_open):
            pushes, at = self._known_pushes, 0
            while at < len(data) and self._pending.size < self._max_in_flight:
                if (request := pushes.match(data, at)) is None:
                    break
                answer = self._receiver.answer_push(request, pushes.payload, now_ms)
                size = pushes.end - at - LENGTH_BYTES
                pending = PendingRequest(_PUSH, 0, pushes.correlation_id, request.caller.client_id or "", size)
                self._answer(pending, answer)
                at = pushes.end
            if at:
                pushes.payload = b""  # an idle connection keeps no payload
                if at == len(data):
                    return False
                data = data[at:]
        self._now_ms = now_ms
        forwarded = self.feed(data)
        self.to_upstream = self.to_upstream + forwarded if self.to_upstream else forwarded
        before, self.unfinished_request = self.unfinished_request, 0 if self.is_crowded else self.unfinished
        return before > 0 or self.unfinished_request > 0

    def from_upstream(self, data: bytes, now_ms: int) -> None:
        self._responses.now_ms = now_ms
        forwarded = self._responses.feed(data)
        self.to_client = self.to_client + forwarded if self.to_client else forwarded
        self.response_waits = not self._responses.between_frames

    def flushed(self, ok: bool) -> bytes:
        """Returns the answers that waited for the flush of the spool, or their refusals if it failed.

        With `response_waits`, call `from_upstream(b"")` after that.
        """
        return self._pending.flushed(ok)

    def discard(self) -> None:
        """Frees unfinished requests and responses before the connection is closed."""
        super().discard()
        self._responses.discard()
        self.unfinished_request = 0

    def keep_alive(self) -> None:
        """Sends ApiVersions: a broker closes the idle upstream connection of a client that only pushes telemetry.

        Not while requests are in flight, before SASL is done, or after its session expired.
        """
        accepted = self._sasl is None or self._sasl.is_open
        if self._local is not None or not accepted or not self.idle or not self.between_frames:
            return
        pending = PendingRequest(APIS[API_VERSIONS], 0, 0, "", 0)
        pending.keep_alive = True
        self._pending.append(pending)
        client_id = self._client.last_client_id
        head = REQUEST_HEAD.pack(API_VERSIONS, 0, 0, len(client_id))
        self.to_upstream += (len(head) + len(client_id)).to_bytes(4, "big") + head + client_id

    def closed(self) -> None:
        self.discard()
        self._known_pushes.forget()
        self._receiver.disconnected(self._connection_id)

    @property
    def authenticated(self) -> bool:
        return self._sasl is None or self._sasl.principal is not None

    @property
    def idle(self) -> bool:
        return self._pending.first is None and self._held is None

    @property
    def has_room(self) -> bool:
        """Whether so few requests are left in flight that it is worthwhile to go on."""
        return self._pending.size <= self._max_in_flight // 2

    # --- the beginning of a request: forward, hold or skip

    def begin(self, length: int, data: bytes, offset: int) -> int:
        if self._pending.size >= self._max_in_flight:
            self.is_crowded = True
            return UNDECIDED
        if self._sasl is None or not self._sasl.raw:
            return self._begin_request(length, data, offset)
        return self._begin_held(PendingRequest(APIS[SASL_AUTHENTICATE], RAW_TOKEN, 0, "", length), data, offset)

    def _begin_request(self, length: int, data: bytes, offset: int) -> int:
        start = offset + REQUEST_HEAD_BYTES
        if len(data) < start:
            if length < REQUEST_HEAD_BYTES:
                raise ProtocolError(f"cannot read a request of {length} bytes")
            return UNDECIDED
        key_and_version = int32_at(data, offset)
        if key_and_version != self._key_and_version:
            self._api = api_of(key_and_version)
            self._key_and_version, self._holds = key_and_version, self._api.key in self._held_keys
        api, version = self._api, key_and_version & 0xFFFF
        if self._sasl is not None and not self._sasl.is_open:
            self._sasl.check(api.key)
            self._client.note_principal()  # the owner of a delegation token, if it is known now
        correlation_id, id_length = int32_at(data, offset + 4), int16_at(data, offset + 8)
        client_id_end = start + id_length if id_length > 0 else start
        if len(data) < client_id_end and length + offset > len(data):
            check_head(data, offset)
            return UNDECIDED
        if client_id_end - offset > length:
            raise ProtocolError(f"cannot read a client id of {id_length} bytes in a request of {length}")
        client_id = self._client.client_id(data[start:client_id_end])  # a null one is empty (RequestHeader.parse)
        pending = PendingRequest(api, version, correlation_id, client_id, length)
        if self._holds:
            self._client_id_end = client_id_end - offset + LENGTH_BYTES
            return self._begin_held(pending, data, offset)
        if self._local is not None:
            raise ProtocolError(f"cannot answer a request of API {api.key} without a broker")
        if api.key == PRODUCE:
            return self._begin_produce(pending, data, offset, client_id_end)
        self._pending.append(pending)
        return FORWARD

    def _begin_held(self, pending: PendingRequest, data: bytes, offset: int) -> int:
        self._held = pending
        if pending.request_bytes <= self._limits.max_held_request_bytes:
            return HOLD
        if MUTATING[pending.api.key]:
            self._held, pending.changes = None, UNREADABLE
            self._pending.append(pending)
            return FORWARD
        if pending.api.key != PUSH_TELEMETRY:
            raise ProtocolError(f"cannot accept a {pending.api.name} request of {pending.request_bytes} bytes")
        begun = data[offset - LENGTH_BYTES : offset + MAX_REQUEST_HEAD_BYTES]
        if len(begun) < LENGTH_BYTES + min(MAX_REQUEST_HEAD_BYTES, pending.request_bytes):
            return UNDECIDED
        head = read_push_head(request_body(begun, self._client_id_end, flexible=True))
        self._too_large = PushRequest(*head, self._client.caller(pending.client_id))
        return SKIP

    def _begin_produce(self, pending: PendingRequest, data: bytes, offset: int, client_id_end: int) -> int:
        try:
            acks = read_acks(data, client_id_end, offset + pending.request_bytes, pending.version)
        except ProtocolError:
            if len(data) - offset >= pending.request_bytes:
                raise
            check_head(data, offset)
            return UNDECIDED
        if acks == 0:  # the broker never answers these
            self._observe(exchange_of(self._client, pending, self._now_ms, 0))
        else:
            self._pending.append(pending)
        if self._topics is None or not self._topics.takes_next():
            return FORWARD
        self._sampled = SampledFrame(
            self._topics, self._client, PRODUCE, pending.version, pending.client_id, pending.request_bytes
        )
        return WATCH

    def watch(self, data: bytes) -> bytes:
        if self._sampled is not None:
            self._sampled.feed(data)
        return data

    # --- a whole request that was held

    def complete(self, frame: bytes) -> bytes:
        pending, self._held = self._held, None
        if pending is None:
            return b""
        if self._too_large is not None:  # answered after its end: a client does not read while it sends
            request, self._too_large = self._too_large, None
            self._answer(pending, self._receiver.answer_push(request, None, self._now_ms))
            return b""
        api, version = pending.api, pending.version
        if self._sasl is not None and api.key in SASL:
            self._known_pushes.forget()  # the identity may change with this authentication
            self._sasl.read_request(api, version, frame, self._client_id_end)
            self._pending.append(pending)
            return frame
        if version > api.max_version:
            self._answer(pending, Answer(API_VERSIONS_TOO_NEW))
            return b""
        body = request_body(frame, self._client_id_end, flexible=api.flexible(version))
        if api.key == PUSH_TELEMETRY:
            head, payload = read_push(body)
            push = PushRequest(*head, self._client.caller(pending.client_id))
            answer = self._receiver.answer_push(push, payload, self._now_ms)
            is_settled = self._sasl is None or self._sasl.is_open  # as the fast path requires
            if is_settled and answer.after_flush and not frame[self._client_id_end]:
                self._known_pushes.note(frame, self._client_id_end, push)
            self._answer(pending, answer)
            return b""
        if api.key == GET_TELEMETRY_SUBSCRIPTIONS:
            caller = self._client.caller(pending.client_id)
            self._answer(pending, self._receiver.answer_get(body, caller, self._now_ms))
            return b""
        if api.key == API_VERSIONS and version >= 3:
            self._client.note_software(body)
            self._known_pushes.forget()
        if self._local is None:
            if MUTATING[api.key]:
                pending.changes = requested_changes(api, version, body)
            self._pending.append(pending)
            return frame
        self._answer(pending, Answer(self._local[api.key](version, body)))
        return b""

    # --- local answers

    def _answer(self, pending: PendingRequest, answer: Answer) -> None:
        pending.answer = answer
        self._pending.append(pending)
        if answer.after_flush:
            pending.flushed = False
            self.unflushed = True
        elif self._pending.size == 1:
            self.to_client += self._pending.take_ready()


class KnownPushes:
    """The heads of accepted pushes on one connection: everything between correlation id and payload.

    Most connections have one client instance and therefore one head. After `match`, `correlation_id`, `payload` and
    `end` are those of the push that it found.
    """

    def __init__(self, heads: KnownHeads) -> None:
        self.correlation_id = 0
        self.payload = b""
        self.end = 0
        self._heads = heads
        self._last_head = b""
        self._last: PushRequest | None = None
        self._by_head: dict[bytes, PushRequest] | None = None  # with a second head

    def match(self, data: bytes, at: int) -> PushRequest | None:
        """The request, when `data` has a complete push with a known head at `at`."""
        if self._last is None or at + _LEAST_BYTES > len(data):
            return None
        end = at + LENGTH_BYTES + int32_at(data, at)
        if end > len(data) or end < at + _LEAST_BYTES or int32_at(data, at + LENGTH_BYTES) != _PUSH_V0:
            return None
        id_length = int16_at(data, at + _HEAD_AT)
        payload_at = at + _CLIENT_ID_AT + _BEHIND_CLIENT_ID + (id_length if id_length > 0 else 0)
        if payload_at + 2 > end or data[end - 1]:  # tagged fields at the end
            return None
        head = data[at + _HEAD_AT : payload_at]
        request: PushRequest | None = None
        if head == self._last_head:
            request = self._last
        elif self._by_head is not None:
            request = self._by_head.get(head)
        if request is None or not self._take_payload(data, payload_at, end - 1):
            return None
        self.correlation_id = int32_at(data, at + _CORRELATION_ID_AT)
        self.end = end
        return request

    def note(self, frame: bytes, client_id_end: int, request: PushRequest) -> None:
        """Remembers the head of a push that was accepted and has no tagged fields in its header."""
        head = frame[_HEAD_AT : client_id_end + _BEHIND_CLIENT_ID]
        if self._last is not None and self._heads.count < _MAX_OF_ALL:
            if self._by_head is None:
                self._by_head = {}
            if len(self._by_head) < _MAX_PER_CONNECTION and head not in self._by_head:
                self._by_head[head] = request
                self._heads.count += 1
        self._last_head, self._last = head, request

    def forget(self) -> None:
        """The identity of the connection may change, or it is closed."""
        if self._by_head is not None:
            self._heads.count -= len(self._by_head)
        self._last_head, self._last, self._by_head = b"", None, None

    def _take_payload(self, data: bytes, at: int, end: int) -> bool:
        """Whether the payload, with its length + 1 as a varint before it, fills [at, end)."""
        size = shift = 0
        while at < end and shift < 28:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.payload = data[at:end]
                return size == end - at + 1
            shift += 7
        return False
