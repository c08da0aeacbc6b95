"""Checks one client by its requests while it plays a script of answers to it. Sans-I/O: time and ids are parameters.

Times are compared between an answer and the request that follows, as the listener sees them: a request may come
_EARLY earlier than the rule says, because of rounding, and `patience_ms` later, because machines that test are busy.
"""

from enum import Enum
from typing import Final, NamedTuple

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.receiver.telemetry_requests import all_metrics_for
from telemetry.subscriptions.kip714_rules import ZERO_ID
from telemetry.verification.findings import Findings, KipRule, RuleVerdict
from telemetry.verification.payloads import Offer, PayloadCheck
from telemetry.wire.apis import GET_TELEMETRY_SUBSCRIPTIONS
from telemetry.wire.errors import ErrorCode
from telemetry.wire.telemetry_messages import (
    ACCEPTED_COMPRESSION_TYPES,
    PUSH_RESPONSE,
    PushHead,
    granted_get,
    read_get,
    read_push,
)

TELEMETRY_MAX_BYTES: Final = 1_048_576  # Kafka's default of telemetry.max.bytes
_EARLY: Final = 0.05
_FIRST_SUBSCRIPTION_ID: Final = 0x0714_0001
_UNNAMED: Final = "org.apache.kafka."  # requested of a client that named no metric
_MOST_UNANSWERED: Final = 3  # pushes of a client that goes on although each answer tells it to ask again
_LEAST_JITTERS: Final = 3
_LEAST_SPREAD: Final = 0.01  # of an interval: timers of a client without jitter differ by less

_GZIP: Final = b"\x01"


class Wanted(Enum):
    """The metrics that a stage requests. ONE_NAME: one of those that the client sent before."""

    ALL = 0
    ONE_NAME = 1
    NOTHING = 2


class ScriptStage(NamedTuple):
    """A subscription, and the codes of the answers to the pushes under it; the next stage begins with the next
    GetTelemetrySubscriptions. `hang_up`: the connection is closed after the last answer, once."""

    wanted: Wanted
    answers: tuple[ErrorCode, ...]
    codecs: bytes = ACCEPTED_COMPRESSION_TYPES
    delta: bool = True
    hang_up: bool = False


_OK: Final = ErrorCode.NONE
# Thirteen to fourteen intervals for a client that does all right. After the last stage pushes are accepted until the
# client is closed.
SCRIPT: Final = (
    ScriptStage(Wanted.ALL, (_OK, _OK, ErrorCode.UNKNOWN_SUBSCRIPTION_ID)),
    ScriptStage(Wanted.ONE_NAME, (_OK, ErrorCode.THROTTLING_QUOTA_EXCEEDED), codecs=_GZIP),
    ScriptStage(Wanted.ALL, (ErrorCode.TELEMETRY_TOO_LARGE,)),
    ScriptStage(Wanted.ALL, (_OK, _OK, ErrorCode.UNKNOWN_SUBSCRIPTION_ID), delta=False),
    ScriptStage(Wanted.NOTHING, ()),
    ScriptStage(Wanted.ALL, (_OK,), hang_up=True),
)


class Request(NamedTuple):
    """A telemetry request. `frame`: all of it without its length field; `connection`: a number of the listener's."""

    api_key: int
    body: bytes
    frame: bytes
    connection: int
    now_ms: int


class Reply(NamedTuple):
    """The body of the response; `hang_up`: the connection is closed behind it."""

    body: bytes
    hang_up: bool = False


class _Due(NamedTuple):
    """The request that must follow an answer: not before `earliest`, nor long after `latest`, in intervals."""

    rule: KipRule
    earliest: float
    latest: float
    is_get: bool = False


_AFTER: Final = {
    ErrorCode.NONE: _Due(KipRule.PUSH_INTERVAL, 1.0, 1.5),
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: _Due(KipRule.UNKNOWN_SUBSCRIPTION, 0.0, 0.5, is_get=True),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _Due(KipRule.THROTTLE, 1.0, 2.0),
    ErrorCode.TELEMETRY_TOO_LARGE: _Due(KipRule.TOO_LARGE, 1.0, 2.0),
}
_AFTER_HANG_UP: Final = _Due(KipRule.RECONNECT, 0.0, 2.0)
_AFTER_SUBSCRIPTION: Final = _Due(KipRule.JITTER, 0.5, 1.5)
_AFTER_NOTHING_REQUESTED: Final = _Due(KipRule.NO_METRICS, 1.0, 1.5, is_get=True)


class ClientCheck:
    """Pass it each request with `answer`, connections with `opened` and `closed`, and time with `tick` until `over`.

    `client_instance_id`: what the client is named. `complete`: all was tried, and the client may be closed.
    """

    def __init__(self, *, interval_ms: int, patience_ms: int, client_instance_id: bytes) -> None:
        self.over = False
        self.complete = False
        self.software_name = ""  # as the client states it
        self._interval_ms, self._patience_ms = interval_ms, patience_ms
        self._id = client_instance_id
        self._findings = Findings()
        self._check: PayloadCheck | None = None  # None: no subscription was asked for yet
        self._stage = 0
        self._answered = 0  # pushes under the stage
        self._hung_up = False
        self._due, self._due_since_ms = _AFTER_SUBSCRIPTION, 0
        self._jitters: list[float] = []
        self._terminated_ms: int | None = None
        self._connections: set[int] = set()
        self._alone_since_ms = 0

    @property
    def verdicts(self) -> list[RuleVerdict]:
        if len(self._jitters) >= _LEAST_JITTERS and max(self._jitters) - min(self._jitters) < _LEAST_SPREAD:
            always = f"each of {len(self._jitters)} first pushes came {self._jitters[0]:.2f} intervals after the answer"
            self._findings.broken(KipRule.JITTER, always)
        return self._findings.verdicts()

    def opened(self, connection: int) -> None:
        self._connections.add(connection)

    def closed(self, connection: int, now_ms: int) -> None:
        self._connections.discard(connection)
        self._alone_since_ms = now_ms

    def unreadable(self, reason: str, frame: bytes) -> None:
        """A request could not be read; its connection is closed."""
        self._findings.observed(KipRule.READABLE)
        self._findings.broken(KipRule.READABLE, reason, frame)

    def answer(self, request: Request) -> Reply:
        """The response to a GetTelemetrySubscriptions or PushTelemetry request."""
        try:
            if request.api_key == GET_TELEMETRY_SUBSCRIPTIONS:
                client_instance_id = read_get(request.body)
                self._findings.observed(KipRule.READABLE)
                return self._get(client_instance_id, request)
            head, payload = read_push(request.body)
        except ProtocolError as exc:
            self.unreadable(str(exc), request.frame)
            return Reply(b"", hang_up=True)
        self._findings.observed(KipRule.READABLE)
        return self._push(head, payload, request)

    def tick(self, now_ms: int) -> None:
        """Ends the check when the client is closed, or silent for too long."""
        if self._check is None or self.over:
            return
        if self._terminated_ms is not None:
            self.over = not self._connections or now_ms - self._terminated_ms > self._interval_ms
            return
        due = self._due
        if not self._connections and now_ms - self._alone_since_ms > self._patience_ms and due != _AFTER_HANG_UP:
            self._findings.broken(
                KipRule.TERMINATING_PUSH, "the client closed its connections without a terminating push"
            )
            self.over = True
        elif now_ms - self._due_since_ms > due.latest * self._interval_ms + self._patience_ms:
            what = "GetTelemetrySubscriptions" if due.is_get else "telemetry request"
            reason = f"no {what} came within {now_ms - self._due_since_ms} ms; the interval is {self._interval_ms} ms"
            self._findings.broken(due.rule, reason)
            self.over = True

    def _get(self, client_instance_id: bytes, request: Request) -> Reply:
        if self._check is None:
            self._findings.observed(KipRule.FIRST_GET)
            if client_instance_id != ZERO_ID:
                reason = f"the first client instance id is {client_instance_id.hex()} instead of zero"
                self._findings.broken(KipRule.FIRST_GET, reason, request.frame)
        else:
            self._identify(client_instance_id, request)
            self._is_after_the_end(request)
            self._keep_time(request, is_get=True)
            if self._answered >= len(SCRIPT[self._stage].answers) and self._stage + 1 < len(SCRIPT):
                self._stage, self._answered = self._stage + 1, 0
        stage = SCRIPT[self._stage]
        metrics: tuple[str, ...] = ()
        if stage.wanted is Wanted.ALL:
            metrics = (all_metrics_for(self.software_name),)
        elif stage.wanted is Wanted.ONE_NAME:
            metrics = (min(self._check.names, default=_UNNAMED) if self._check else _UNNAMED,)
        offer = Offer(metrics, stage.codecs, stage.delta)
        self._check = PayloadCheck(offer, self._findings)
        self._expect(_AFTER_SUBSCRIPTION if offer.metrics else _AFTER_NOTHING_REQUESTED, request.now_ms)
        body = granted_get(
            self._id,
            _FIRST_SUBSCRIPTION_ID + self._stage,
            self._interval_ms,
            TELEMETRY_MAX_BYTES,
            offer.metrics,
            offer.codecs,
            offer.delta,
        )
        return Reply(body)

    def _push(self, head: PushHead, payload: bytes, request: Request) -> Reply:
        if self._check is None:
            self._findings.broken(KipRule.FIRST_GET, "a push came before GetTelemetrySubscriptions", request.frame)
            return Reply(PUSH_RESPONSE[ErrorCode.UNKNOWN_SUBSCRIPTION_ID])
        self._identify(head.client_instance_id, request)
        self._findings.observed(KipRule.SUBSCRIPTION_ID)
        subscription_id = _FIRST_SUBSCRIPTION_ID + self._stage
        if head.subscription_id != subscription_id:
            reason = f"the subscription id is {head.subscription_id}; the last answer said {subscription_id}"
            self._findings.broken(KipRule.SUBSCRIPTION_ID, reason, request.frame)
        if len(payload) > TELEMETRY_MAX_BYTES:
            reason = f"the push has {len(payload)} bytes; TelemetryMaxBytes is {TELEMETRY_MAX_BYTES}"
            self._findings.broken(KipRule.TOO_LARGE, reason, request.frame)
        if self._check.offer.metrics:
            self._check.push(head.compression_type, payload, request.frame)
        else:
            self._findings.broken(KipRule.NO_METRICS, "a push came although no metrics were requested", request.frame)
        if head.terminating:
            self._findings.observed(KipRule.TERMINATING_PUSH)
        if self._is_after_the_end(request):
            return Reply(PUSH_RESPONSE[ErrorCode.INVALID_REQUEST])  # as a broker answers
        if head.terminating:
            self._terminated_ms = request.now_ms
            return Reply(PUSH_RESPONSE[ErrorCode.NONE])
        self._keep_time(request, is_get=False)
        # The stage's next answer. Past its end, the client should have asked again, unless it is the last stage.
        stage, at = SCRIPT[self._stage], self._answered
        self._answered += 1
        is_last_stage = self._stage == len(SCRIPT) - 1
        self.over = self.over or (not is_last_stage and at >= len(stage.answers) + _MOST_UNANSWERED)
        rest = ErrorCode.NONE if is_last_stage else ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        code = stage.answers[at] if at < len(stage.answers) else rest
        hang_up = stage.hang_up and at + 1 >= len(stage.answers) and not self._hung_up
        self._hung_up = self._hung_up or hang_up
        self._expect(_AFTER_HANG_UP if hang_up else _AFTER[code], request.now_ms)
        return Reply(PUSH_RESPONSE[code], hang_up)

    def _identify(self, client_instance_id: bytes, request: Request) -> None:
        rule = KipRule.RECONNECT if self._due == _AFTER_HANG_UP else KipRule.INSTANCE_ID
        self._findings.observed(rule)
        if client_instance_id != self._id:
            reason = f"the client instance id is {client_instance_id.hex()}; it was given {self._id.hex()}"
            self._findings.broken(rule, reason, request.frame)
        if rule is KipRule.RECONNECT:
            self.complete = True

    def _keep_time(self, request: Request, *, is_get: bool) -> None:
        """Checks the rule that the last answer began."""
        due, waited_ms = self._due, request.now_ms - self._due_since_ms
        self._findings.observed(due.rule)
        if due.is_get and not is_get:
            self._findings.broken(due.rule, "a push came instead of GetTelemetrySubscriptions", request.frame)
        least_ms = due.earliest * self._interval_ms
        if waited_ms < least_ms * (1 - _EARLY):
            reason = f"the request came {waited_ms} ms after the answer, earlier than {least_ms:.0f} ms"
            self._findings.broken(due.rule, reason, request.frame)
        if due.rule is KipRule.JITTER and not is_get:
            self._jitters.append(waited_ms / self._interval_ms)

    def _is_after_the_end(self, request: Request) -> bool:
        """Whether a terminating push came before. The request then breaks its rule."""
        if self._terminated_ms is None:
            return False
        self._findings.broken(KipRule.TERMINATING_PUSH, "a request came after the terminating push", request.frame)
        return True

    def _expect(self, due: _Due, now_ms: int) -> None:
        self._due, self._due_since_ms = due, now_ms
