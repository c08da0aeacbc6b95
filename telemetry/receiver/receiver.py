"""The telemetry receiver: a GetTelemetrySubscriptions or PushTelemetry request in, rules, spool record, answer out.

Sans-I/O. `get` and `push` return values, `answer_get`, `answer_push` and `answer_oversize` bytes of the Kafka protocol.
Internal errors are answered with THROTTLING_QUOTA_EXCEEDED (89), which clients retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog
from mypy_extensions import mypyc_attr

from exporters.model import RecordKind
from exporters.spool.records import encode_instance, push_record
from exporters.spool.writer import SpoolFull
from telemetry.rules.client_instances import Caller, Instance
from telemetry.rules.client_metrics import ClientMetrics, PushRequest
from telemetry.rules.subscription_config import ALL_METRICS
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import (
    PUSH_RESPONSE,
    REFUSED_GET,
    granted_get,
    read_get,
)

log = structlog.get_logger(__name__)

_NONE: Final = ErrorCode.NONE  # on the way of each push: a member is looked up by Python code in 3.11
_PUSH: Final = RecordKind.PUSH
RETRY: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
# Brokers and the Java and C clients spell "all metrics" as ALL_METRICS. KIP-714 and the schema spell it "", and clients
# written from them take ALL_METRICS for a prefix, so that they push nothing: franz-go 1.22.
_SPELL_ALL_AS_KIP_714: Final = frozenset({"kgo"})


class Answer(NamedTuple):
    """A response behind its header.

    With `after_flush`, `body` may be sent once the spool was flushed; if it cannot be, `refusal` is.
    """

    body: bytes
    after_flush: bool
    refusal: bytes


class Granted(NamedTuple):
    """The answer to a GetTelemetrySubscriptions: an instance where `code` is NONE.

    With `after_flush` it may be sent once the spool was flushed; if it cannot be, RETRY is.
    """

    code: ErrorCode
    instance: Instance | None
    after_flush: bool


@dataclass(slots=True)
class ReceiverCounts:
    """Requests by answer; failed flushes are counted in GroupCommit."""

    gets: Counter[ErrorCode] = field(default_factory=Counter)
    refused_pushes: Counter[ErrorCode] = field(default_factory=Counter)
    accepted_pushes: int = 0
    accepted_bytes: int = 0  # compressed
    empty_pushes: int = 0
    faults: int = 0  # internal errors, answered with RETRY

    @property
    def pushes(self) -> Counter[ErrorCode]:
        return Counter({_NONE: self.accepted_pushes} if self.accepted_pushes else {}) + self.refused_pushes


_ACCEPTED = Answer(PUSH_RESPONSE[_NONE], after_flush=True, refusal=PUSH_RESPONSE[RETRY])
_REFUSED_PUSH = {code: Answer(body, after_flush=False, refusal=b"") for code, body in PUSH_RESPONSE.items()}
_REFUSED_GET = {code: Answer(body, after_flush=False, refusal=b"") for code, body in REFUSED_GET.items()}


def all_metrics_for(caller: Caller) -> str:
    """How "all metrics" is spelled for a client."""
    return "" if caller.connection.software_name in _SPELL_ALL_AS_KIP_714 else ALL_METRICS


@mypyc_attr(allow_interpreted_subclasses=True)  # doubles in tests
class TelemetryReceiver:
    """Answers requests by the rules, and appends accepted pushes to the spool.

    `append(kind, body)` queues a record for the spool and raises SpoolFull. `telemetry_max_bytes`: the longest
    payload, compressed, that is taken (Kafka's telemetry.max.bytes). `validate_payload(compression_type, payload)`:
    the code for a
    payload that passed the rules; without it all are taken, and what cannot be decoded is dropped later.

    `now_ms` of the methods is wall time and stamps records. `rules_ms` is the clock by which the rules throttle and
    expire: a monotonic one, so that a wall clock set back refuses nobody. Without it the rules go by `now_ms`.
    """

    def __init__(
        self,
        rules: ClientMetrics,
        *,
        append: Callable[[RecordKind, bytes], None],
        telemetry_max_bytes: int,
        validate_payload: Callable[[int, bytes], ErrorCode] | None = None,
        rules_ms: Callable[[], int] | None = None,
    ) -> None:
        self.rules = rules
        self.counts = ReceiverCounts()
        self.telemetry_max_bytes = telemetry_max_bytes
        self._append = append
        self._validate = validate_payload
        self._rules_ms = rules_ms
        self._unsettled: list[Instance] = []  # that something was queued for since the last flush

    # --- values

    def get(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> Granted:
        """Grants what the instance is subscribed to, or refuses."""
        try:
            granted = self._get(client_instance_id, caller, now_ms)
        except Exception as exc:  # noqa: BLE001 - logged by _retry_later
            granted = Granted(self._retry_later(exc), None, after_flush=False)
        self.counts.gets[granted.code] += 1
        return granted

    def push(self, request: PushRequest, payload: bytes, now_ms: int) -> ErrorCode:
        """NONE: the payload, compressed as it came, was queued, and may be acknowledged once the spool was flushed."""
        counts, instance = self.counts, None
        try:
            code, instance = self.rules.push(request, self._gate_ms(now_ms), len(payload) > self.telemetry_max_bytes)
            if code is _NONE and instance is not None:
                code = self._keep(request, payload, instance, now_ms)
        except Exception as exc:  # noqa: BLE001 - logged by _retry_later
            code = self._retry_later(exc)
            if instance is not None:
                instance.refused(code)
        if code is _NONE:
            counts.accepted_pushes += 1
            counts.accepted_bytes += len(payload)
        else:
            counts.refused_pushes[code] += 1
        return code

    def settled(self, ok: bool) -> None:
        """The queued records were flushed, or lost: then their clients are asked to retry, and are let in."""
        unsettled, self._unsettled = self._unsettled, []
        if not ok:
            for instance in unsettled:
                instance.refused(RETRY)
                instance.recorded_on = ""

    def disconnected(self, connection_id: str) -> None:
        """A connection ended."""
        self.rules.disconnected(connection_id)

    # --- bytes

    def answer_push(self, request: PushRequest, payload: bytes, now_ms: int) -> Answer:
        """The response to a PushTelemetry request."""
        code = self.push(request, payload, now_ms)
        return _ACCEPTED if code is _NONE else _REFUSED_PUSH[code]  # the hash of a code is a Python call

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        """The response to a GetTelemetrySubscriptions request of this body. Raises ProtocolError."""
        return self._get_answer(self.get(read_get(body), caller, now_ms), caller)

    def answer_oversize(self, request: PushRequest, now_ms: int) -> Answer:
        """The response to a push whose payload is too large to be held: as `answer_push`, never accepted."""
        try:
            code, _ = self.rules.push(request, self._gate_ms(now_ms), too_large=True)
        except Exception as exc:  # noqa: BLE001 - logged by _retry_later
            code = self._retry_later(exc)
        self.counts.refused_pushes[code] += 1
        return _REFUSED_PUSH[code]

    def _get_answer(self, granted: Granted, caller: Caller) -> Answer:
        instance = granted.instance
        if instance is None:
            return _REFUSED_GET[granted.code]
        body = granted_get(
            instance.client_instance_id,
            instance.subscription_id,
            instance.selection.interval_ms,
            self.telemetry_max_bytes,
            instance.selection.spelled(all_metrics_for(caller)),
        )
        return Answer(body, granted.after_flush, REFUSED_GET[RETRY] if granted.after_flush else b"")

    # --- decisions and what follows from them

    def _gate_ms(self, now_ms: int) -> int:
        return now_ms if self._rules_ms is None else self._rules_ms()

    def _get(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> Granted:
        code, instance = self.rules.get(client_instance_id, caller, self._gate_ms(now_ms))
        if code is not ErrorCode.NONE:
            return Granted(code, None, after_flush=False)
        # A client that is asked for no metrics never pushes: this record is all there is of it.
        seen = instance.recorded_on != caller.connection_id or not instance.selection.requested_metrics
        if seen:
            self._record_seen(instance, caller, now_ms)
        return Granted(code, instance, after_flush=seen)

    def _keep(self, request: PushRequest, payload: bytes, instance: Instance, now_ms: int) -> ErrorCode:
        """NONE, or the code of the validate_payload."""
        if not payload:
            self._record_seen(instance, request.caller, now_ms)
            self.counts.empty_pushes += 1
            return _NONE
        if self._validate is not None and (code := self._validate(request.compression_type, payload)) is not _NONE:
            instance.refused(code)
            return code
        self._append(_PUSH, push_record(now_ms, request.origin, payload))
        self._unsettled.append(instance)
        return _NONE

    def _record_seen(self, instance: Instance, caller: Caller, now_ms: int) -> None:
        """Raises SpoolFull."""
        self._append(RecordKind.INSTANCE, encode_instance(now_ms, instance.client_instance_id, caller.sender))
        instance.recorded_on = caller.connection_id
        self._unsettled.append(instance)

    def _retry_later(self, exc: Exception) -> ErrorCode:
        """The code for an internal error."""
        if not isinstance(exc, SpoolFull):
            self.counts.faults += 1
            if self.counts.faults & (self.counts.faults - 1) == 0:  # the 1st, 2nd, 4th, 8th ... or the log is flooded
                log.error("telemetry request failed", faults=self.counts.faults, exc_info=exc)
        return RETRY
