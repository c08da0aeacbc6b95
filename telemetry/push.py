"""The telemetry door: a GetTelemetrySubscriptions or PushTelemetry request in, rules, spool record, answer out.

Sans-I/O. Both APIs exist in version 0 only. Requests are read and answers written by hand: a general reader and writer
cost more than everything else on this path. An unexpected fault of ours is answered so that the client comes back.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from exporters.model import ClientInstance, Connection, Push, RecordKind
from exporters.records import encode_instance, push_head
from exporters.spool import SpoolFull
from telemetry.errors import ErrorCode, ProtocolError
from telemetry.instances import Caller, Instance
from telemetry.primitives import Reader, write_compact_array_length, write_compact_string
from telemetry.selection import Selection
from telemetry.subscription_config import ALL_METRICS
from telemetry.subscriptions import ClientMetrics, PushRequest

log = structlog.get_logger(__name__)

GET_TELEMETRY_SUBSCRIPTIONS: Final = 71
PUSH_TELEMETRY: Final = 72

_PUSH_HEAD = struct.Struct(">16siBb")  # client_instance_id, subscription_id, terminating, compression_type
_GET_HEAD = struct.Struct(">ih16si")  # throttle_time_ms, error_code, client_instance_id, subscription_id
_GET_TAIL = struct.Struct(">ii?")  # push_interval_ms, telemetry_max_bytes, delta_temporality
_PUSH_ANSWER = struct.Struct(">ihB")  # throttle_time_ms, error_code, no tagged fields
_ACCEPTED_COMPRESSION_TYPES = b"\x05\x04\x03\x01\x02"  # zstd, lz4, gzip, snappy: the order is the preference
# Brokers and the Java and C clients spell "all metrics" as ALL_METRICS. KIP-714 and the schema spell it "", and clients
# written from them take ALL_METRICS for a prefix, so that they push nothing: franz-go 1.22.
_SPELL_ALL_AS_KIP_714: Final = frozenset({"kgo"})
_MAX_CLIENT_ID_CHARS = 16_383  # as UTF-8 it fits the length field of a record; only what is not UTF-8 is longer


@dataclass(frozen=True, slots=True)
class Answer:
    """A response behind its header.

    With `after_flush`, `body` may be sent once the spool was flushed; if it cannot be, `refusal` is.
    """

    body: bytes
    after_flush: bool
    refusal: bytes


@dataclass(slots=True)
class DoorCounts:
    """What came and how it was answered; what failed at the flush is counted where that happens."""

    gets: Counter[ErrorCode] = field(default_factory=Counter)
    pushes: Counter[ErrorCode] = field(default_factory=Counter)
    accepted_bytes: int = 0  # compressed
    empty_pushes: int = 0
    faults: int = 0  # of ours, answered with THROTTLING_QUOTA_EXCEEDED


def _refused_get(code: ErrorCode) -> bytes:
    """All fields but the code have their defaults; the three arrays and the end are one byte each."""
    return _GET_HEAD.pack(0, code, bytes(16), 0) + b"\x01" + _GET_TAIL.pack(0, 0, False) + b"\x01\x00"


_GET_BODY = {code: _refused_get(code) for code in ErrorCode}
_PUSH_BODY = {code: _PUSH_ANSWER.pack(0, code, 0) for code in ErrorCode}
_COME_BACK: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_PUSH_REFUSED = {code: Answer(body, after_flush=False, refusal=b"") for code, body in _PUSH_BODY.items()}
_GET_REFUSED = {code: Answer(body, after_flush=False, refusal=b"") for code, body in _GET_BODY.items()}
_PUSH_ACCEPTED = Answer(_PUSH_BODY[ErrorCode.NONE], after_flush=True, refusal=_PUSH_BODY[_COME_BACK])


class TelemetryDoor:
    """Answers requests by the rules, and keeps what they bring.

    `append(kind, *parts)` queues a record for the spool and raises SpoolFull. `telemetry_max_bytes`: the longest
    payload, compressed, that is taken (Kafka's telemetry.max.bytes).
    """

    def __init__(self, rules: ClientMetrics, *, append: Callable[..., None], telemetry_max_bytes: int) -> None:
        self.rules = rules
        self.counts = DoorCounts()
        self._append = append
        self._max_bytes = telemetry_max_bytes

    def answer(
        self,
        api_key: int,
        body: bytes,
        *,
        client_id: str | None,
        connection: Connection,
        connection_blob: bytes,
        connection_id: str,
        now_ms: int,
    ) -> Answer:
        """The answer to a request. `body`: the request behind its header. `connection_blob`: records.connection_bytes.

        Raises ProtocolError when the body cannot be read.
        """
        caller = Caller(connection, client_id, connection_id)
        return self._guarded(api_key, lambda: self._answered(api_key, body, caller, connection_blob, now_ms))

    def oversize(
        self,
        api_key: int,
        body: bytes,
        *,
        client_id: str | None,
        connection: Connection,
        connection_blob: bytes,
        connection_id: str,
        now_ms: int,
    ) -> Answer:
        """The answer to a push that is too long to be read: as `answer`, but `body` is only how it begins."""
        if api_key != PUSH_TELEMETRY:
            raise ProtocolError(f"cannot answer API {api_key} by the first {len(body)} bytes of a request")
        caller = Caller(connection, client_id, connection_id)
        return self._guarded(api_key, lambda: self._too_large(body, caller, now_ms))

    def disconnected(self, connection_id: str) -> None:
        """A connection ended."""
        self.rules.disconnected(connection_id)

    def _guarded(self, api_key: int, step: Callable[[], Answer]) -> Answer:
        """A fault of ours is answered so that the client comes back. Raises ProtocolError."""
        try:
            return step()
        except ProtocolError:
            raise
        except SpoolFull:
            return self._come_back(api_key)
        except Exception:
            self.counts.faults += 1
            if self.counts.faults & (self.counts.faults - 1) == 0:  # the 1st, 2nd, 4th, 8th ... or the log is flooded
                log.exception("telemetry request failed", api_key=api_key, faults=self.counts.faults)
            return self._come_back(api_key)

    def _answered(self, api_key: int, body: bytes, caller: Caller, blob: bytes, now_ms: int) -> Answer:
        if api_key == PUSH_TELEMETRY:
            return self._push(body, caller, blob, now_ms)
        if api_key == GET_TELEMETRY_SUBSCRIPTIONS:
            return self._get(body, caller, blob, now_ms)
        raise ProtocolError(f"cannot answer API {api_key}")

    def _too_large(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        code, _ = self.rules.push(_push_request(body, too_large=True), caller, now_ms)
        self.counts.pushes[code] += 1
        return _PUSH_REFUSED[code]

    def _come_back(self, api_key: int) -> Answer:
        if api_key == GET_TELEMETRY_SUBSCRIPTIONS:
            self.counts.gets[_COME_BACK] += 1
            return _GET_REFUSED[_COME_BACK]
        self.counts.pushes[_COME_BACK] += 1
        return _PUSH_REFUSED[_COME_BACK]

    def _get(self, body: bytes, caller: Caller, blob: bytes, now_ms: int) -> Answer:
        reader = Reader(body)
        client_instance_id = reader.uuid()
        reader.skip_tagged()
        code, instance = self.rules.get(client_instance_id, caller, now_ms)
        if code is not ErrorCode.NONE:
            self.counts.gets[code] += 1
            return _GET_REFUSED[code]
        new = instance.recorded_on != caller.connection_id
        if new:
            self._record_seen(instance, caller, blob, now_ms)
        self.counts.gets[code] += 1
        head = _GET_HEAD.pack(0, code, instance.client_instance_id, instance.subscription_id)
        as_kip_714 = caller.connection.software_name in _SPELL_ALL_AS_KIP_714
        return Answer(
            head + _selection_bytes(instance.selection, self._max_bytes, as_kip_714),
            after_flush=new,
            refusal=_GET_BODY[_COME_BACK] if new else b"",
        )

    def _push(self, body: bytes, caller: Caller, blob: bytes, now_ms: int) -> Answer:
        reader = Reader(body, min(_PUSH_HEAD.size, len(body)))
        size = max(reader.uvarint() - 1, 0)  # null is as good as empty
        start = reader.offset
        reader.skip(size)
        reader.skip_tagged()
        request = _push_request(body, too_large=size > self._max_bytes)
        code, instance = self.rules.push(request, caller, now_ms)
        if code is not ErrorCode.NONE or instance is None:
            self.counts.pushes[code] += 1
            return _PUSH_REFUSED[code]
        try:
            self._keep(request, body[start : start + size], instance, caller, blob, now_ms)
        except Exception:
            instance.not_stored()
            raise
        self.counts.pushes[code] += 1
        self.counts.accepted_bytes += size
        return _PUSH_ACCEPTED

    def _keep(
        self, request: PushRequest, payload: bytes, instance: Instance, caller: Caller, blob: bytes, now_ms: int
    ) -> None:
        """Raises SpoolFull."""
        if not payload:
            self._record_seen(instance, caller, blob, now_ms)
            self.counts.empty_pushes += 1
            return
        push = Push(
            caller.connection,
            _recorded(caller.client_id),
            request.client_instance_id,
            now_ms,
            request.subscription_id,
            request.terminating,
            request.compression_type,
            payload,
        )
        self._append(RecordKind.PUSH, push_head(push, blob), payload)

    def _record_seen(self, instance: Instance, caller: Caller, blob: bytes, now_ms: int) -> None:
        """Raises SpoolFull."""
        seen = ClientInstance(caller.connection, _recorded(caller.client_id), instance.client_instance_id, now_ms)
        self._append(RecordKind.INSTANCE, encode_instance(seen, blob))
        instance.recorded_on = caller.connection_id


def _push_request(body: bytes, *, too_large: bool) -> PushRequest:
    try:
        client_instance_id, subscription_id, terminating, compression_type = _PUSH_HEAD.unpack_from(body)
    except struct.error as exc:
        raise ProtocolError(f"cannot read a push of {len(body)} bytes") from exc
    return PushRequest(client_instance_id, subscription_id, terminating != 0, compression_type, too_large)


def _recorded(client_id: str | None) -> str:
    return "" if client_id is None else client_id[:_MAX_CLIENT_ID_CHARS]


@functools.lru_cache(maxsize=1024)
def _selection_bytes(selection: Selection, telemetry_max_bytes: int, as_kip_714: bool) -> bytes:
    """What the answers to all clients with one selection have in common: all behind the subscription id."""
    out = bytearray(_ACCEPTED_COMPRESSION_TYPES)
    out += _GET_TAIL.pack(selection.interval_ms, telemetry_max_bytes, True)
    requested = selection.requested_metrics
    if as_kip_714 and requested == (ALL_METRICS,):
        requested = ("",)
    write_compact_array_length(out, len(requested))
    for prefix in requested:
        write_compact_string(out, prefix)
    out.append(0)
    return bytes(out)
