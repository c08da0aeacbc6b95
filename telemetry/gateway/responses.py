"""One connection's responses in the order of its requests: the broker's, and local answers between them. Sans-I/O.

Matches the broker's responses with the pending requests and rewrites those that name brokers or API versions.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from exporters.identity import stored_name
from exporters.model import Changes, ExchangeValues
from quota_metrics.kafka.primitives import ProtocolError, int32_at
from telemetry.gateway.security.client_identity import RAW_TOKEN, SASL, ClientIdentity
from telemetry.gateway.topic_sampling import SampledFrame, TopicSampler
from telemetry.receiver.telemetry_requests import Answer
from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import API_VERSIONS, FETCH, PRODUCE, Api, flags_of
from telemetry.wire.fetch_endpoints import NAMES_ENDPOINTS_FROM, FetchEndpoints
from telemetry.wire.frames import (
    FORWARD,
    HOLD,
    LENGTH_BYTES,
    SKIP,
    UNDECIDED,
    WATCH,
    FrameScanner,
    encode_response,
    response_body_at,
)
from telemetry.wire.mutations import MUTATING, MUTATIONS, accepted_changes

# (version, body of the request) -> body of the response. Raises ProtocolError.
LocalAnswer = Callable[[int, bytes], bytes]
# Called with each exchange between client and broker: quota_metrics.measure.usage_meter.UsageMeter.exchange.
Observe = Callable[[ExchangeValues], None]
_HELD: Final = flags_of({API_VERSIONS, PRODUCE, *MUTATIONS, *addresses.REWRITES})
_HELD_WITH_SASL: Final = flags_of({API_VERSIONS, PRODUCE, *MUTATIONS, *addresses.REWRITES, *SASL})
# How far throttle times that were read late may reach. The client is free again soon after, and the throttle times of a
# broker that does not mute connections do not add up without end.
_MAX_LATE_MS: Final = 10_000
_HEAD_BYTES: Final = 9  # correlation id, no tagged fields, throttle_time_ms
_MAX_HELD_BYTES: Final = 128 << 20  # of a response that is rewritten: fits Metadata of a million partitions


@mypyc_attr(acyclic=True)  # not known to the garbage collector
class PendingRequest:
    """A request without a sent response. `request_bytes` excludes the length field, as the broker counts it."""

    answer: Answer | None = None  # the local answer; None: the broker answers
    flushed: bool = True  # False: the answer waits for the spool
    keep_alive: bool = False  # sent by the gateway itself, its response is dropped
    response_bytes: int = 0
    throttle_ms: int = 0
    changes: Changes = ()  # of partitions, that the request asks for

    def __init__(self, api: Api, version: int, correlation_id: int, client_id: str, request_bytes: int) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request_bytes = request_bytes
        self.next: PendingRequest | None = None  # in PendingRequests


class PendingRequests:
    """The queue of one connection: responses are sent in the order of the requests."""

    __slots__ = ("_last", "first", "size")

    def __init__(self) -> None:
        self.first: PendingRequest | None = None
        self._last: PendingRequest | None = None
        self.size = 0

    def append(self, pending: PendingRequest) -> None:
        if self._last is None:
            self.first = pending
        else:
            self._last.next = pending
        self._last = pending
        self.size += 1

    def remove_first(self) -> None:
        assert self.first is not None
        self.first = self.first.next
        if self.first is None:
            self._last = None
        self.size -= 1

    def flushed(self, ok: bool) -> bytes:
        """The responses that may be sent after a flush. If it failed (`ok` False), waiting answers become refusals."""
        pending = self.first
        while pending is not None:
            if not (ok or pending.flushed or pending.answer is None):
                pending.answer = Answer(pending.answer.refusal)
            pending.flushed = True
            pending = pending.next
        return self.take_ready()

    def take_ready(self) -> bytes:
        """The local answers at the head of the queue that wait for nothing."""
        pending = self.first
        if pending is None or pending.answer is None:
            return b""
        out: list[bytes] = []
        while pending is not None:
            answer = pending.answer
            if answer is None or not pending.flushed:
                break
            self.remove_first()
            out.append(encode_response(pending.api, pending.version, pending.correlation_id, answer.body))
            pending = self.first
        return out[0] if len(out) == 1 else b"".join(out)


class BrokerResponses(FrameScanner):
    """Takes the broker's bytes and returns those for the client, with local answers in request order.

    A response that is not at its end may wait for a local answer before it. The caller sets `now_ms` before `feed`.
    """

    def __init__(
        self,
        requests: PendingRequests,
        client: ClientIdentity,
        *,
        address_of: addresses.AddressOf,
        observe: Observe,
        max_response_bytes: int,
        topics: TopicSampler | None = None,
    ) -> None:
        super().__init__(max_response_bytes)
        self._requests = requests
        self._client = client
        self._address_of = address_of
        self._observe = observe
        self.now_ms = 0
        self._muted_until_ms = 0
        self._held = _HELD if client.sasl is None else _HELD_WITH_SASL
        self._unmatched = False  # the current response belongs to no pending request
        self._endpoints = FetchEndpoints()
        self._hides_endpoints = False  # of the current response
        self._topics = topics
        self._sampled: SampledFrame | None = None  # the arriving Fetch response, when its topics are read

    def begin(self, length: int, data: bytes, offset: int) -> int:
        pending = self._requests.first
        if pending is not None and pending.answer is not None:
            return UNDECIDED  # wait for a local answer before it, which waits for the spool
        if pending is not None and pending.version == RAW_TOKEN:
            self._unmatched = False
            return HOLD
        if len(data) - offset < min(length, _HEAD_BYTES):
            return UNDECIDED
        if length < LENGTH_BYTES:
            raise ProtocolError(f"cannot read a response of {length} bytes")
        correlation_id = int32_at(data, offset)
        if pending is None or pending.correlation_id != correlation_id:
            later = pending.next if pending is not None else None
            while later is not None:  # else the rest of the connection would pass unread
                if later.correlation_id == correlation_id:
                    raise ProtocolError(f"the broker answers request {correlation_id} before an earlier one")
                later = later.next
            # librdkafka's mock broker answers acks=0 produces: forwarded without a matching request
            self._unmatched = True
            return FORWARD
        self._unmatched = False
        pending.response_bytes = length
        # The throttle time follows the header, unless that has tagged fields or the response is too short for it.
        throttle_at = 5 if pending.api.flexible(pending.version) else 4
        is_there = length >= throttle_at + 4 and (throttle_at == 4 or data[offset + 4] == 0)
        if is_there and pending.api.throttle_first(pending.version):
            pending.throttle_ms = int32_at(data, offset + throttle_at)
        if pending.keep_alive:
            return SKIP
        if not self._held[pending.api.key]:
            return self._begin_fetch(pending) if pending.api.key == FETCH else FORWARD
        if length > _MAX_HELD_BYTES:
            raise ProtocolError(f"cannot rewrite a {pending.api.name} response of {length} bytes")
        return HOLD

    def _begin_fetch(self, pending: PendingRequest) -> int:
        self._hides_endpoints = pending.version >= NAMES_ENDPOINTS_FROM
        if self._hides_endpoints:
            self._endpoints.begin()
        self._sampled = None
        if self._topics is not None and self._topics.takes_next():
            self._sampled = SampledFrame(
                self._topics, self._client, FETCH, pending.version, pending.client_id, pending.response_bytes
            )
        return WATCH if self._hides_endpoints or self._sampled is not None else FORWARD

    def watch(self, data: bytes) -> bytes:
        if self._sampled is not None:
            self._sampled.feed(data)
        return self._endpoints.hidden(data) if self._hides_endpoints else data

    def complete(self, frame: bytes) -> bytes:
        pending = self._requests.first
        assert pending is not None
        if pending.keep_alive:
            return self.end()
        key, version = pending.api.key, pending.version
        sasl = self._client.sasl
        if sasl is not None and key in SASL:
            sasl.read_response(pending.api, version, frame)
            self.accepts_empty = sasl.raw
            self._client.note_principal()
            return frame + self.end()
        start = response_body_at(frame, tagged=version >= pending.api.response_tags_from)
        body = b""  # in place of the broker's
        if key == PRODUCE:
            body, pending.throttle_ms = addresses.produce(frame, start, version, self._address_of)
        elif key == API_VERSIONS:
            body = addresses.api_versions(frame[start:], version)
            if sasl is not None and sasl.unproven:
                sasl.answered(key, body)
        elif MUTATING[key]:
            pending.changes = accepted_changes(pending.api, version, frame[start:], pending.changes)
        else:
            body = addresses.REWRITES[key](frame[start:], version, self._address_of)
        if body:
            head = frame[LENGTH_BYTES:start]
            frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
        behind = self.end()
        return frame + behind if behind else frame

    def end(self) -> bytes:
        if self._unmatched:
            return b""
        pending = self._requests.first
        assert pending is not None
        self._requests.remove_first()
        sasl = self._client.sasl
        if sasl is not None and sasl.unproven:
            sasl.answered(pending.api.key)
        if not pending.keep_alive:
            muted_from_ms = 0
            if pending.throttle_ms > 0:
                # A broker reads no request of a muted connection (SocketServer.ChannelMuteState), so the throttle times
                # of a connection do not overlap. When responses waited here or for a slow client, each throttle time
                # begins when the previous one ends.
                muted_from_ms = min(max(self.now_ms, self._muted_until_ms), self.now_ms + _MAX_LATE_MS)
                self._muted_until_ms = max(self._muted_until_ms, muted_from_ms + pending.throttle_ms)
            self._observe(exchange_of(self._client, pending, self.now_ms, muted_from_ms))
        return self._requests.take_ready()


def exchange_of(client: ClientIdentity, pending: PendingRequest, now_ms: int, muted_from_ms: int) -> ExchangeValues:
    """The exchange for the usage meter, after the broker's answer, or at once for a request without one (acks=0)."""
    return (
        stored_name(client.principal),
        stored_name(pending.client_id),
        client.address,
        client.broker_id,
        pending.api.key,
        pending.request_bytes,
        pending.response_bytes,
        pending.throttle_ms,
        now_ms,
        pending.changes,
        muted_from_ms,
    )
