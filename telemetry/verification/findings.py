"""What was found about each rule that a client must keep. Sans-I/O.

Source: KIP-714, sections "Client behavior", "Client telemetry receiver" and the errors of GetTelemetrySubscriptions and
PushTelemetry; where it leaves a choice, what Java's and the C client do both passes.
"""

from enum import StrEnum
from typing import Final, NamedTuple

MAX_FRAME_SHOWN_BYTES: Final = 4_096
_MAX_REASON_CHARS: Final = 500


class KipRule(StrEnum):
    """The rules, in the order in which a script tries them."""

    READABLE = "readable"
    FIRST_GET = "first-get"
    INSTANCE_ID = "instance-id"
    JITTER = "jitter"
    PUSH_INTERVAL = "push-interval"
    SUBSCRIPTION_ID = "subscription-id"
    COMPRESSION = "compression"
    PAYLOAD = "payload"
    DELTA = "delta"
    UNKNOWN_SUBSCRIPTION = "unknown-subscription"
    REQUESTED_METRICS = "requested-metrics"
    THROTTLE = "throttle"
    TOO_LARGE = "too-large"
    CUMULATIVE = "cumulative"
    NO_METRICS = "no-metrics"
    RECONNECT = "reconnect"
    TERMINATING_PUSH = "terminating-push"


MEANINGS: Final = {
    KipRule.READABLE: "requests are frames of GetTelemetrySubscriptions and PushTelemetry version 0",
    KipRule.FIRST_GET: "the first request asks for a subscription with a zero client instance id",
    KipRule.INSTANCE_ID: "all later requests carry the client instance id of the first answer",
    KipRule.JITTER: "the first push after a subscription comes after 0.5 to 1.5 intervals, not always after the same",
    KipRule.PUSH_INTERVAL: "pushes are one interval apart, and go on",
    KipRule.SUBSCRIPTION_ID: "a push carries the subscription id of the last answer",
    KipRule.COMPRESSION: "a push uses a codec that was offered, or none, and can be decompressed",
    KipRule.PAYLOAD: "a push is OTLP MetricsData with names and times",
    KipRule.DELTA: "sums are deltas that do not overlap, when deltas are asked for",
    KipRule.UNKNOWN_SUBSCRIPTION: "UNKNOWN_SUBSCRIPTION_ID makes the client ask for its subscription at once",
    KipRule.REQUESTED_METRICS: "only metrics whose names begin as requested are sent",
    KipRule.THROTTLE: "after THROTTLING_QUOTA_EXCEEDED nothing is sent for an interval, then the client goes on",
    KipRule.TOO_LARGE: "pushes keep to TelemetryMaxBytes; after TELEMETRY_TOO_LARGE the client goes on an interval "
    "later",
    KipRule.CUMULATIVE: "sums are cumulative and do not fall, when cumulative ones are asked for",
    KipRule.NO_METRICS: "with no metrics requested nothing is pushed, and the client asks again an interval later",
    KipRule.RECONNECT: "after its connection was closed the client comes back with the same client instance id",
    KipRule.TERMINATING_PUSH: "closing the client sends one push with Terminating set, and nothing after it",
}


class Outcome(StrEnum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    NOT_SEEN = "not-seen"


class RuleVerdict(NamedTuple):
    """What was found about a rule.

    `frame`: the first MAX_FRAME_SHOWN_BYTES of the request that broke it, without its length field, which has
    `frame_bytes`; empty when a request that did not come broke it.
    """

    rule: KipRule
    outcome: Outcome
    observed: int  # how many requests or events the rule was applied to
    reason: str
    frame: bytes
    frame_bytes: int


class Findings:
    """Counts what each rule was applied to, and keeps its first violation."""

    def __init__(self) -> None:
        self._observed = dict.fromkeys(KipRule, 0)
        self._broken: dict[KipRule, RuleVerdict] = {}

    def observed(self, rule: KipRule) -> None:
        self._observed[rule] += 1

    def broken(self, rule: KipRule, reason: str, frame: bytes = b"") -> None:
        shown = frame[:MAX_FRAME_SHOWN_BYTES]
        verdict = RuleVerdict(rule, Outcome.FAIL, 0, reason[:_MAX_REASON_CHARS], shown, len(frame))
        self._broken.setdefault(rule, verdict)

    def verdicts(self) -> list[RuleVerdict]:
        verdicts = []
        for rule, observed in self._observed.items():
            if (broken := self._broken.get(rule)) is not None:
                verdicts.append(broken._replace(observed=max(observed, 1)))
            else:
                outcome = Outcome.PASS if observed else Outcome.NOT_SEEN
                verdicts.append(RuleVerdict(rule, outcome, observed, "", b"", 0))
        return verdicts
