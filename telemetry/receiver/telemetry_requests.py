"""The telemetry receiver: applies the rules to GetTelemetrySubscriptions and PushTelemetry, spools pushes, answers.

Sans-I/O. `get` and `push` return values, `answer_get` and `answer_push` bytes of the Kafka protocol.
Internal errors are answered with THROTTLING_QUOTA_EXCEEDED (89), which clients retry.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog
from mypy_extensions import mypyc_attr

from exporters.model import RecordKind
from exporters.spool.records import encode_instance, push_record
from exporters.spool.writer import SpoolFull
from telemetry.subscriptions.kip714_rules import ClientMetrics, Instance, PushRequest
from telemetry.subscriptions.payer_budgets import Caller, Payers
from telemetry.subscriptions.subscription import ALL_METRICS
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import (
    PUSH_RESPONSE,
    REFUSED_GET,
    granted_get,
    read_get,
    throttled_get,
    throttled_push,
)

log = structlog.get_logger(__name__)

_NONE: Final = ErrorCode.NONE  # enum member access is slow in Python 3.11
_PUSH: Final = RecordKind.PUSH
RETRY: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
# Brokers and the Java and C clients spell "all metrics" as ALL_METRICS. KIP-714 and the message schema spell it "".
# Clients written from those (franz-go 1.22, Dekaf) read ALL_METRICS as a prefix that matches nothing, and push nothing.
_SPELL_ALL_AS_KIP_714: Final = frozenset({"kgo", "dekaf"})


@dataclass(frozen=True, slots=True)
class Answer:
    """A response body.

    With `after_flush`, `body` is sent after the spool is flushed, or `refusal` if the flush fails.
    """

    body: bytes
    after_flush: bool = False
    refusal: bytes = b""


class Granted(NamedTuple):
    """The decision on a GetTelemetrySubscriptions request; `instance` is set where `code` is NONE.

    With `after_flush` it is sent after the spool is flushed, or RETRY if the flush fails.
    """

    code: ErrorCode
    instance: Instance | None
    after_flush: bool


@dataclass(slots=True)
class ReceiverCounts:
    """Number of requests by outcome; GroupCommit counts failed flushes."""

    gets: Counter[ErrorCode] = field(default_factory=Counter)
    refused_pushes: Counter[ErrorCode] = field(default_factory=Counter)
    accepted_pushes: int = 0
    accepted_bytes: int = 0  # compressed
    empty_pushes: int = 0
    faults: int = 0  # internal errors, answered with RETRY

    @property
    def pushes(self) -> Counter[ErrorCode]:
        return Counter({_NONE: self.accepted_pushes} if self.accepted_pushes else {}) + self.refused_pushes


_ACCEPTED: Final = Answer(PUSH_RESPONSE[_NONE], after_flush=True, refusal=PUSH_RESPONSE[RETRY])
_REFUSED_PUSH: Final = {code: Answer(body) for code, body in PUSH_RESPONSE.items()}
_REFUSED_GET: Final = {code: Answer(body) for code, body in REFUSED_GET.items()}


def all_metrics_for(software_name: str) -> str:
    """The spelling of "all metrics" that a client understands."""
    return "" if software_name in _SPELL_ALL_AS_KIP_714 else ALL_METRICS


@mypyc_attr(allow_interpreted_subclasses=True)  # tests pass doubles
class TelemetryReceiver:
    """Answers requests according to the rules and appends accepted pushes to the spool.

    `append(kind, body)` queues a record for the spool and raises SpoolFull. `telemetry_max_bytes`: the largest
    compressed payload accepted (Kafka's telemetry.max.bytes). `validate_payload(compression_type, payload)` returns
    the code for a payload that passed the rules; without it payloads are not validated here, and ingest drops those
    that it cannot decode. `payers`: the budgets of those who pay for the requests (default limits if None); a request
    over them is answered with THROTTLING_QUOTA_EXCEEDED before the rules see it.

    `now_ms` is wall time and stamps records. `rules_ms` is the monotonic clock of the throttling and expiry rules, so
    that setting the wall clock back refuses nobody; without it the rules use `now_ms`.
    """

    def __init__(
        self,
        rules: ClientMetrics,
        *,
        append: Callable[[RecordKind, bytes], None],
        telemetry_max_bytes: int,
        validate_payload: Callable[[int, bytes], ErrorCode] | None = None,
        rules_ms: Callable[[], int] | None = None,
        payers: Payers | None = None,
    ) -> None:
        self.rules = rules
        self.payers = payers or Payers()
        self.counts = ReceiverCounts()
        self.telemetry_max_bytes = telemetry_max_bytes
        self._append = append
        self._validate = validate_payload
        self._rules_ms = rules_ms  # None: `now_ms`
        self._throttle_ms = 0  # of the request just refused for its payer's budget
        self._unsettled: list[Instance] = []  # instances with queued records since the last flush

    # --- values

    def get(self, client_instance_id: bytes, caller: Caller, now_ms: int) -> Granted:
        code, is_new = RETRY, False
        instance: Instance | None = None
        try:
            gate_ms = now_ms if self._rules_ms is None else self._rules_ms()
            if not self._is_over(caller, client_instance_id, None, 0, gate_ms):
                code, instance = self.rules.get(client_instance_id, caller, gate_ms)
                if code is _NONE:
                    # A client without requested metrics never pushes: this record is the only trace of it.
                    is_new = instance.recorded_on != caller.connection_id or not instance.selection.requested_metrics
                    if is_new:
                        self._record_seen(instance, caller, now_ms)
        except Exception as exc:  # noqa: BLE001 - logged by _retry_later
            code = self._retry_later(exc)
        self.counts.gets[code] += 1
        return Granted(code, instance, is_new) if code is _NONE else Granted(code, None, after_flush=False)

    def push(self, request: PushRequest, payload: bytes | None, now_ms: int) -> ErrorCode:
        """Answers PushTelemetry. NONE: the payload is queued and may be acknowledged after the next flush.

        `payload`: None when it was too large to be held.
        """
        counts, instance = self.counts, None
        nbytes = self.telemetry_max_bytes + 1 if payload is None else len(payload)
        try:
            gate_ms = now_ms if self._rules_ms is None else self._rules_ms()
            if self._is_over(request.caller, request.client_instance_id, request.instance, nbytes, gate_ms):
                counts.refused_pushes[RETRY] += 1
                return RETRY
            code, instance = self.rules.push(request, gate_ms, nbytes > self.telemetry_max_bytes)
            if code is _NONE and instance is not None and payload is not None:
                if not payload:
                    self._record_seen(instance, request.caller, now_ms)
                    counts.empty_pushes += 1
                else:
                    if self._validate is not None:
                        code = self._validate(request.compression_type, payload)
                    if code is _NONE:
                        self._append(_PUSH, push_record(now_ms, request.origin, payload))
                        self._unsettled.append(instance)
                    else:
                        instance.refused(code)
        except Exception as exc:  # noqa: BLE001 - logged by _retry_later
            code = self._retry_later(exc)
            if instance is not None:
                instance.refused(code)
        if code is _NONE:
            counts.accepted_pushes += 1
            counts.accepted_bytes += nbytes
        else:
            counts.refused_pushes[code] += 1
        return code

    def settled(self, ok: bool) -> None:
        """Reports the outcome of a flush. After a failure the affected instances may retry at once."""
        unsettled, self._unsettled = self._unsettled, []
        if not ok:
            for instance in unsettled:
                instance.refused(RETRY)
                instance.recorded_on = ""

    def charge_address(self, address: str, nbytes: int, now_ms: int) -> int:
        """Charges a request of another protocol to its source address, as `Payers.charge_address`."""
        return self.payers.charge_address(address, now_ms if self._rules_ms is None else self._rules_ms(), nbytes)

    def disconnected(self, connection_id: str) -> None:
        self.rules.instances.disconnected(connection_id)
        self.payers.disconnected(connection_id)

    # --- bytes

    def answer_push(self, request: PushRequest, payload: bytes | None, now_ms: int) -> Answer:
        """The response to a PushTelemetry request; `payload` as in `push`."""
        code = self.push(request, payload, now_ms)
        if code is _NONE:
            return _ACCEPTED  # the hash of a code is a Python call
        if (throttle_ms := self._taken_throttle_ms()) > 0:
            return Answer(throttled_push(throttle_ms))
        return _REFUSED_PUSH[code]

    def answer_get(self, body: bytes, caller: Caller, now_ms: int) -> Answer:
        """The response to a GetTelemetrySubscriptions request of this body. Raises ProtocolError."""
        granted = self.get(read_get(body), caller, now_ms)
        instance = granted.instance
        if instance is None:
            if (throttle_ms := self._taken_throttle_ms()) > 0:
                return Answer(throttled_get(throttle_ms))
            return _REFUSED_GET[granted.code]
        response = granted_get(
            instance.client_instance_id,
            instance.subscription_id,
            instance.selection.interval_ms,
            self.telemetry_max_bytes,
            instance.selection.spelled(all_metrics_for(caller.connection.software_name)),
        )
        return Answer(response, granted.after_flush, REFUSED_GET[RETRY] if granted.after_flush else b"")

    # --- decisions and what follows from them

    def _is_over(
        self, caller: Caller, client_instance_id: bytes, instance: Instance | None, nbytes: int, gate_ms: int
    ) -> bool:
        """Charges a request to its payer. Returns whether the request is refused instead.

        `instance`: the client's instance, if it has been looked up already.
        """
        account = caller.account
        if account is None:
            account = caller.account = self.payers.account(caller.connection, caller.connection_id)
        is_new = instance is None and client_instance_id not in self.rules.instances
        self._throttle_ms = throttle_ms = account.charge(gate_ms, nbytes, is_new)
        return throttle_ms > 0

    def _taken_throttle_ms(self) -> int:
        throttle_ms, self._throttle_ms = self._throttle_ms, 0
        return throttle_ms

    def _record_seen(self, instance: Instance, caller: Caller, now_ms: int) -> None:
        """Raises SpoolFull."""
        self._append(RecordKind.INSTANCE, encode_instance(now_ms, instance.client_instance_id, caller.sender))
        instance.recorded_on = caller.connection_id
        self._unsettled.append(instance)

    def _retry_later(self, exc: Exception) -> ErrorCode:
        """The code for an internal error."""
        if not isinstance(exc, SpoolFull):
            self.counts.faults += 1
            if self.counts.faults & (self.counts.faults - 1) == 0:  # 1st, 2nd, 4th, 8th ... only
                log.error("telemetry request failed", faults=self.counts.faults, exc_info=exc)
        return RETRY
