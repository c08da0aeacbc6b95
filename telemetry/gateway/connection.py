"""One client connection, and its upstream to the broker if there is one: which bytes go where. Sans-I/O.

What a client sends goes to the broker, save GetTelemetrySubscriptions and PushTelemetry, which the telemetry receiver
answers. What the broker sends goes to the client, save the responses that name brokers or API versions, which are
rewritten. A connection's responses leave in the order of its requests: a local answer waits for the responses before
it, and those behind it wait for a push to be in the spool.

Without a broker behind, `local` answers what it knows, and everything else closes the connection, as a broker does.

After each call the owner takes `to_upstream` and `to_client`; when `unflushed` is set it clears it, flushes the spool
and calls `flushed`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import Final

from exporters.model import Connection
from telemetry.gateway.client_identity import Sender
from telemetry.gateway.exchanges import (
    REQUEST_HEAD,
    RESPONSE_HEAD,
    Exchange,
    Limits,
    LocalAnswer,
    Observe,
    acks_of,
    request_body,
    response,
)
from telemetry.gateway.push_fast_path import KnownPush, known_push, push_response
from telemetry.receiver.receiver import PUSH_ANSWER, RETRY, Answer, TelemetryReceiver
from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import (
    API_VERSIONS,
    APIS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PRODUCE,
    PUSH_TELEMETRY,
)
from telemetry.wire.errors import ErrorCode, ProtocolError
from telemetry.wire.frames import LENGTH_BYTES, FrameScanner, Mode

_API_VERSIONS_TOO_NEW = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, APIS[API_VERSIONS].max_version)  # KIP-511: v0
_HELD = frozenset({GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, API_VERSIONS})
_NONE: Final = ErrorCode.NONE  # on the way of each push: a member is looked up by Python code in 3.11
_MAX_REQUEST_HEAD_BYTES = 100_000  # a client id and a transactional id of 32 kB each fit


class ProxiedConnection:
    """The state of one connection. Raises ProtocolError from the two `from_*` calls: close both sides."""

    def __init__(
        self,
        *,
        facts: Connection,
        connection_id: str,
        receiver: TelemetryReceiver,
        address_of: addresses.AddressOf,
        observe: Observe,
        limits: Limits,
        local: Mapping[int, LocalAnswer] | None = None,
    ) -> None:
        self.to_upstream: list[bytes] = []
        self.to_client: list[bytes] = []
        self.unflushed = False
        self._connection_id = connection_id
        self._receiver = receiver
        self._address_of = address_of
        self._observe = observe
        self._limits = limits
        self._local = local  # by API key; None: there is a broker behind
        self._now_ms = 0
        self._in_flight: deque[Exchange] = deque()
        self._request: Exchange | None = None  # the request that is coming in, when it is not just forwarded
        self._unmatched = False  # the response that is coming in belongs to no request that we remember
        self._sender = Sender(facts, connection_id)
        self._known_push: KnownPush | None = None
        self._waiting_id = b""  # correlation id of a known push whose answer has not left
        self._waiting_code = _NONE
        self._requests = FrameScanner(
            begin=self._begin_request,
            complete=self._complete_request,
            end=bytes,
            max_frame_bytes=limits.max_request_bytes,
        )
        self._responses = FrameScanner(
            begin=self._begin_response,
            complete=self._complete_response,
            end=self._end_response,
            max_frame_bytes=limits.max_response_bytes,
        )

    def take_known_push(self, data: bytes, now_ms: int) -> bool:
        """Whether `data` was a whole push that begins as the last one did; its answer is `acknowledgement`."""
        known = self._known_push
        if known is None or self._in_flight or self._waiting_id or not self._requests.between_frames:
            return False
        payload = known.payload(data)
        if payload is None:
            return False
        self._waiting_id = data[8:12]
        self._waiting_code = self._receiver.push(known.request, payload, now_ms)
        return True

    def acknowledgement(self, ok: bool) -> bytes:
        """The response to a known push, once the spool was flushed, or could not be."""
        correlation_id, self._waiting_id = self._waiting_id, b""
        code = RETRY if self._waiting_code is _NONE and not ok else self._waiting_code
        return push_response(correlation_id, code) if correlation_id else b""

    def from_client(self, data: bytes, now_ms: int) -> None:
        """Bytes that the client sent."""
        self._now_ms = now_ms
        if self._waiting_id:
            self._remember_waiting()
        self.to_upstream += self._requests.feed(data)

    def from_upstream(self, data: bytes, now_ms: int) -> None:
        """Bytes that the broker sent."""
        self._now_ms = now_ms
        self.to_client += self._responses.feed(data)

    def flushed(self, ok: bool, now_ms: int) -> None:
        """The spool was flushed, or could not be: the answers that waited for it may go."""
        for exchange in self._in_flight:
            if not exchange.flushed:
                exchange.flushed = True
                if not ok and exchange.answer:
                    exchange.answer = exchange.answer._replace(body=exchange.answer.refusal)
        ready = self._ready_answers()
        if ready:
            self.to_client.append(ready)
        self.from_upstream(b"", now_ms)  # responses that waited behind them

    def closed(self) -> None:
        """The client is gone."""
        self._receiver.disconnected(self._connection_id)

    @property
    def idle(self) -> bool:
        """Whether every request that came has been answered."""
        return not self._in_flight and self._request is None and not self._waiting_id

    # --- requests

    def _remember_waiting(self) -> None:
        """A known push is one request of several when more bytes come before its answer has gone."""
        correlation_id, self._waiting_id = int.from_bytes(self._waiting_id, "big", signed=True), b""
        answer = PUSH_ANSWER[self._waiting_code]
        self._in_flight.append(Exchange(APIS[PUSH_TELEMETRY], 0, correlation_id, None, 0, answer=answer, flushed=False))
        self.unflushed = True

    def _begin_request(self, length: int, data: bytes, offset: int) -> Mode | None:
        if len(data) - offset < REQUEST_HEAD.size:
            if length < REQUEST_HEAD.size:
                raise ProtocolError(f"cannot read a request of {length} bytes")
            return None
        key, version, correlation_id, id_length = REQUEST_HEAD.unpack_from(data, offset)
        api = APIS.get(key)
        if api is None or version < api.min_version or (version > api.max_version and key != API_VERSIONS):
            raise ProtocolError(f"cannot pass on a request of API {key} version {version}")
        start = offset + REQUEST_HEAD.size
        body = start + max(id_length, 0)
        if len(data) < body and length + offset > len(data):
            self._check_head(data, offset)
            return None
        if body - offset > length:
            raise ProtocolError(f"cannot read a client id of {id_length} bytes in a request of {length}")
        client_id = None if id_length < 0 else self._sender.client_id(data[start:body])
        exchange = Exchange(api, version, correlation_id, client_id, length)
        if key in _HELD or (self._local is not None and key in self._local):
            return self._begin_held(exchange, data, offset)
        if self._local is not None:
            raise ProtocolError(f"cannot answer a request of API {key}: there is no broker behind")
        if key == PRODUCE:
            return self._begin_produce(exchange, data, offset, body)
        self._enqueue(exchange)
        return Mode.FORWARD

    def _begin_held(self, exchange: Exchange, data: bytes, offset: int) -> Mode | None:
        self._request = exchange
        if exchange.request_bytes <= self._limits.max_held_request_bytes:
            return Mode.HOLD
        if exchange.api.key != PUSH_TELEMETRY:
            raise ProtocolError(f"cannot take a {exchange.api.name} request of {exchange.request_bytes} bytes")
        head = data[offset : offset + _MAX_REQUEST_HEAD_BYTES]
        if len(head) < _MAX_REQUEST_HEAD_BYTES and len(head) < exchange.request_bytes:
            return None
        self._answer_telemetry(exchange, head, oversize=True)
        return Mode.SKIP

    def _begin_produce(self, exchange: Exchange, data: bytes, offset: int, body: int) -> Mode | None:
        try:
            acks = acks_of(data, body, offset + exchange.request_bytes, exchange.version)
        except ProtocolError:
            if len(data) - offset >= exchange.request_bytes:
                raise
            self._check_head(data, offset)
            return None
        if acks == 0:  # the broker never answers these
            self._observe_exchange(exchange)
        else:
            self._enqueue(exchange)
        return Mode.FORWARD

    def _complete_request(self, frame: bytes) -> bytes:
        exchange, self._request = self._request, None
        if exchange is None or not frame:
            return b""  # a skipped push: answered by its head
        request = frame[LENGTH_BYTES:]
        if exchange.api.key in (PUSH_TELEMETRY, GET_TELEMETRY_SUBSCRIPTIONS):
            self._answer_telemetry(exchange, request)
            self._know_push(exchange, frame)
            return b""
        if exchange.version > exchange.api.max_version:
            self._enqueue_answer(exchange, Answer(body=_API_VERSIONS_TOO_NEW, after_flush=False, refusal=b""))
            return b""
        body = request_body(request, flexible=exchange.api.flexible(exchange.version))
        if exchange.api.key == API_VERSIONS and exchange.version >= 3:
            self._sender.note_software(body)
            self._known_push = None
        if self._local is None:
            self._enqueue(exchange)
            return frame
        answer = self._local[exchange.api.key](exchange.version, body)
        self._enqueue_answer(exchange, Answer(body=answer, after_flush=False, refusal=b""))
        return b""

    def _answer_telemetry(self, exchange: Exchange, request: bytes, *, oversize: bool = False) -> None:
        handle = self._receiver.oversize if oversize else self._receiver.answer
        answer = handle(exchange.api.key, request_body(request), self._sender.caller(exchange.client_id), self._now_ms)
        self._enqueue_answer(exchange, answer)

    def _know_push(self, exchange: Exchange, frame: bytes) -> None:
        if exchange.api.key == PUSH_TELEMETRY and exchange.answer is PUSH_ANSWER[_NONE]:
            self._known_push = known_push(frame, self._sender.caller(exchange.client_id))

    def _enqueue_answer(self, exchange: Exchange, answer: Answer) -> None:
        exchange.answer = answer
        exchange.flushed = not answer.after_flush
        self.unflushed = self.unflushed or answer.after_flush
        self._enqueue(exchange)
        if len(self._in_flight) == 1:
            ready = self._ready_answers()
            if ready:
                self.to_client.append(ready)

    def _enqueue(self, exchange: Exchange) -> None:
        if len(self._in_flight) >= self._limits.max_in_flight:
            raise ProtocolError(f"cannot take more than {self._limits.max_in_flight} requests in flight")
        self._in_flight.append(exchange)

    @staticmethod
    def _check_head(data: bytes, offset: int) -> None:
        """More bytes are waited for, but not without end."""
        if len(data) - offset > _MAX_REQUEST_HEAD_BYTES:
            raise ProtocolError("cannot read the head of a request: too long")

    # --- responses

    def _begin_response(self, length: int, data: bytes, offset: int) -> Mode | None:
        exchange = self._in_flight[0] if self._in_flight else None
        if exchange and exchange.answer:
            return None  # a push that is not in the spool yet: the broker's responses behind it wait
        needed = min(length, 9)  # correlation id, no tagged fields, throttle_time_ms
        if len(data) - offset < needed:
            return None
        if length < LENGTH_BYTES:
            raise ProtocolError(f"cannot read a response of {length} bytes")
        correlation_id = int.from_bytes(data[offset : offset + 4], "big", signed=True)
        if exchange is None or exchange.correlation_id != correlation_id:
            # librdkafka's mock broker answers acks=0 produces: passed on, matched with nothing.
            self._unmatched = True
            return Mode.FORWARD
        self._unmatched = False
        exchange.response_bytes = length
        flexible = exchange.api.flexible(exchange.version)
        if exchange.api.throttle_first(exchange.version):
            start = offset + 4 + flexible
            exchange.throttle_ms = int.from_bytes(data[start : start + 4], "big", signed=True)
        held = exchange.api.key in addresses.REWRITES or exchange.api.key == API_VERSIONS
        return Mode.HOLD if held else Mode.FORWARD

    def _complete_response(self, frame: bytes) -> bytes:
        exchange = self._in_flight[0]
        body_at = RESPONSE_HEAD.size
        if exchange.api.key == API_VERSIONS:  # its response header stays version 0, so that old clients can read it
            body = addresses.api_versions(frame[body_at:], exchange.version)
        else:
            body_at += exchange.api.flexible(exchange.version)
            body = addresses.REWRITES[exchange.api.key](frame[body_at:], exchange.version, self._address_of)
        if exchange.api.key == PRODUCE:
            exchange.throttle_ms = addresses.produce_throttle_ms(body, exchange.version)
        head = frame[LENGTH_BYTES:body_at]
        length = (len(head) + len(body)).to_bytes(LENGTH_BYTES, "big")
        return length + head + body + self._end_response()

    def _end_response(self) -> bytes:
        if self._unmatched:
            return b""
        self._observe_exchange(self._in_flight.popleft())
        return self._ready_answers() if self._in_flight else b""

    def _ready_answers(self) -> bytes:
        """The local answers whose turn it is."""
        out = b""
        while self._in_flight and self._in_flight[0].answer and self._in_flight[0].flushed:
            out += response(self._in_flight.popleft())
        return out

    def _observe_exchange(self, exchange: Exchange) -> None:
        self._observe(
            principal=self._sender.facts.principal,
            client_id=exchange.client_id or "",
            address=self._sender.facts.source_address,
            broker_id=self._sender.facts.broker_id,
            api_key=exchange.api.key,
            request_bytes=exchange.request_bytes,
            response_bytes=exchange.response_bytes,
            throttle_ms=exchange.throttle_ms,
            now_ms=self._now_ms,
        )
