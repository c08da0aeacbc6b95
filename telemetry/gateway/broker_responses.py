"""Matches the broker's responses with requests and rewrites those that name brokers. Sans-I/O."""

from __future__ import annotations

from telemetry.gateway.client_identity import ClientIdentity
from telemetry.gateway.exchanges import Observe, PendingRequest, PendingRequests
from telemetry.gateway.security.authentication import RAW_TOKEN, SASL
from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import API_VERSIONS, PRODUCE, SASL_HANDSHAKE
from telemetry.wire.errors import ProtocolError
from telemetry.wire.frames import LENGTH_BYTES, FrameScanner, Mode
from telemetry.wire.headers import RESPONSE_HEAD, encode_response

_HELD = frozenset({API_VERSIONS, PRODUCE, *addresses.REWRITES})
_MAX_HELD_BYTES = 128 << 20  # of a response that is rewritten: fits Metadata of a million partitions


class BrokerResponses:
    """Takes the broker's bytes and returns those for the client, with local answers in request order.

    `scanner`: a response that is not at its end may wait for a local answer before it.
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
        self._requests = requests
        self._client = client
        self._address_of = address_of
        self._observe = observe
        self._now_ms = 0
        self._held = _HELD if client.sasl is None else _HELD | SASL
        self._unmatched = False  # the current response belongs to no pending request
        self.scanner = FrameScanner(
            begin=self._begin, complete=self._complete, end=self._end, max_frame_bytes=max_response_bytes
        )

    def feed(self, data: bytes, now_ms: int) -> list[bytes]:
        """Raises ProtocolError."""
        self._now_ms = now_ms
        return self.scanner.feed(data)

    def discard(self) -> None:
        """Frees a partly received response before the connection is closed."""
        self.scanner.discard()

    def _begin(self, length: int, data: bytes, offset: int) -> Mode | None:
        pending = self._requests.first
        if pending and pending.answer:
            return None  # wait for a local answer before it, which waits for the spool
        if pending is not None and pending.version == RAW_TOKEN:
            self._unmatched = False
            return Mode.HOLD
        needed = min(length, 9)  # correlation id, no tagged fields, throttle_time_ms
        if len(data) - offset < needed:
            return None
        if length < LENGTH_BYTES:
            raise ProtocolError(f"cannot read a response of {length} bytes")
        correlation_id = int.from_bytes(data[offset : offset + 4], "big", signed=True)
        if pending is None or pending.correlation_id != correlation_id:
            # librdkafka's mock broker answers acks=0 produces: forwarded without a matching request
            self._unmatched = True
            return Mode.FORWARD
        self._unmatched = False
        pending.response_bytes = length
        if pending.api.throttle_first(pending.version):
            start = offset + 4 + pending.api.flexible(pending.version)
            pending.throttle_ms = int.from_bytes(data[start : start + 4], "big", signed=True)
        if pending.keep_alive:
            return Mode.SKIP
        if pending.api.key not in self._held:
            return Mode.FORWARD
        if length > _MAX_HELD_BYTES:
            raise ProtocolError(f"cannot rewrite a {pending.api.name} response of {length} bytes")
        return Mode.HOLD

    def _complete(self, frame: bytes) -> bytes:
        pending = self._requests.first
        assert pending is not None
        if pending.keep_alive:
            return self._end()
        if pending.api.key in SASL:
            self._read_sasl(pending, frame)
            return frame + self._end()
        body = frame[RESPONSE_HEAD.size + (pending.version >= pending.api.response_tags_from) :]
        rewritten = self._rewritten(pending, body)
        if rewritten is not body:
            frame = encode_response(pending.api, pending.version, pending.correlation_id, rewritten)
        return frame + self._end()

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
        body = frame[RESPONSE_HEAD.size + flexible :]
        if pending.version == RAW_TOKEN:
            sasl.token_answered(frame[LENGTH_BYTES:], 0, self._now_ms)
        elif pending.api.key == SASL_HANDSHAKE:
            sasl.handshake_answered(body)
        else:
            sasl.authenticate_answered(pending.version, body, flexible=flexible, now_ms=self._now_ms)
        self.scanner.accepts_empty = sasl.raw
        self._client.note_principal()

    def _end(self) -> bytes:
        if self._unmatched:
            return b""
        pending = self._requests.pop()
        sasl = self._client.sasl
        if sasl is not None and sasl.unproven:
            sasl.answered(pending.api.key)
        if not pending.keep_alive:
            self._observe(self._client.exchange(pending, self._now_ms))
        return self._requests.take_ready() if self._requests else b""
