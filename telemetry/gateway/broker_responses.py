"""Matches the broker's responses with requests and rewrites those that name brokers. Sans-I/O."""

from __future__ import annotations

from typing import Final

from telemetry.gateway.client_identity import ClientIdentity
from telemetry.gateway.exchanges import Observe, PendingRequest, PendingRequests
from telemetry.gateway.security.authentication import RAW_TOKEN, SASL
from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import API_VERSIONS, FETCH, PRODUCE, SASL_HANDSHAKE, flags_of
from telemetry.wire.errors import ProtocolError
from telemetry.wire.fetch_endpoints import NAMES_ENDPOINTS_FROM, FetchEndpoints
from telemetry.wire.frames import FORWARD, HOLD, LENGTH_BYTES, SKIP, UNDECIDED, WATCH, FrameScanner
from telemetry.wire.headers import encode_response
from telemetry.wire.primitives import int32_at

_HELD: Final = flags_of({API_VERSIONS, PRODUCE, *addresses.REWRITES})
_HELD_WITH_SASL: Final = flags_of({API_VERSIONS, PRODUCE, *addresses.REWRITES, *SASL})
_HEAD_BYTES: Final = 9  # correlation id, no tagged fields, throttle_time_ms
_RESPONSE_HEAD_BYTES: Final = 8
_MAX_HELD_BYTES: Final = 128 << 20  # of a response that is rewritten: fits Metadata of a million partitions


class BrokerResponses(FrameScanner):
    """Takes the broker's bytes and returns those for the client, with local answers in request order.

    A response that is not at its end may wait for a local answer before it.
    """

    def __init__(
        self,
        requests: PendingRequests,
        client: ClientIdentity,
        *,
        address_of: addresses.AddressOf,
        observe: Observe,
        max_response_bytes: int,
    ) -> None:
        super().__init__(max_response_bytes)
        self._requests = requests
        self._client = client
        self._address_of = address_of
        self._observe = observe
        self._now_ms = 0
        self._held = _HELD if client.sasl is None else _HELD_WITH_SASL
        self._unmatched = False  # the current response belongs to no pending request
        self._endpoints = FetchEndpoints()

    def feed_at(self, data: bytes, now_ms: int) -> bytes:
        """`feed` at a time. Raises ProtocolError."""
        self._now_ms = now_ms
        return self.feed(data)

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
            # librdkafka's mock broker answers acks=0 produces: forwarded without a matching request
            self._unmatched = True
            return FORWARD
        self._unmatched = False
        pending.response_bytes = length
        _read_throttle_ms(pending, data, offset)
        if pending.keep_alive:
            return SKIP
        if not self._held[pending.api.key]:
            if pending.api.key == FETCH and pending.version >= NAMES_ENDPOINTS_FROM:
                self._endpoints.begin()
                return WATCH
            return FORWARD
        if length > _MAX_HELD_BYTES:
            raise ProtocolError(f"cannot rewrite a {pending.api.name} response of {length} bytes")
        return HOLD

    def watch(self, data: bytes) -> bytes:
        return self._endpoints.hidden(data)

    def complete(self, frame: bytes) -> bytes:
        pending = self._requests.first
        assert pending is not None
        if pending.keep_alive:
            return self.end()
        key, version = pending.api.key, pending.version
        start = _RESPONSE_HEAD_BYTES + (1 if version >= pending.api.response_tags_from else 0)
        if key == PRODUCE and (throttle_ms := addresses.unmoved_throttle_ms(frame, start, version)) >= 0:
            pending.throttle_ms = throttle_ms
            behind = self.end()
            return frame + behind if behind else frame
        if key in SASL:
            self._read_sasl(pending, frame)
            return frame + self.end()
        body = frame[start:]
        rewritten = self._rewritten(pending, body)
        if rewritten is not body:
            frame = encode_response(pending.api, pending.version, pending.correlation_id, rewritten)
        behind = self.end()
        return frame + behind if behind else frame

    def _rewritten(self, pending: PendingRequest, body: bytes) -> bytes:
        key, version = pending.api.key, pending.version
        if key == PRODUCE:
            rewritten, pending.throttle_ms = addresses.produce(body, version, self._address_of)
            return rewritten
        if key == API_VERSIONS:
            return addresses.api_versions(body, version)
        return addresses.REWRITES[key](body, version, self._address_of)

    def _read_sasl(self, pending: PendingRequest, frame: bytes) -> None:
        sasl = self._client.sasl
        assert sasl is not None
        flexible = pending.api.flexible(pending.version)
        body = frame[_RESPONSE_HEAD_BYTES + (1 if flexible else 0) :]
        if pending.version == RAW_TOKEN:
            sasl.token_answered(frame[LENGTH_BYTES:], 0, self._now_ms)
        elif pending.api.key == SASL_HANDSHAKE:
            sasl.handshake_answered(body)
        else:
            sasl.authenticate_answered(pending.version, body, flexible=flexible, now_ms=self._now_ms)
        self.accepts_empty = sasl.raw
        self._client.note_principal()

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
            self._observe(self._client.exchange(pending, self._now_ms))
        return self._requests.take_ready()


def _read_throttle_ms(pending: PendingRequest, data: bytes, offset: int) -> None:
    """Where it follows the header, unless the response is too short for it."""
    start = 5 if pending.api.flexible(pending.version) else 4
    if pending.response_bytes >= start + 4 and pending.api.throttle_first(pending.version):
        pending.throttle_ms = int32_at(data, offset + start)
