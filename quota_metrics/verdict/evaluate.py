"""The verdict about one client in one window, at all its brokers. A series of windows is a fold over the memory."""

from collections.abc import Sequence
from typing import NamedTuple

from quota_metrics.verdict.cause import NO_CAUSE, Cause, TotalUsage, cause_of_instances, cause_of_onset
from quota_metrics.verdict.impact import impact_of
from quota_metrics.verdict.level_and_reason import (
    Nearness,
    held,
    is_near,
    level_of,
    nearness,
    reached,
    reason_of,
    was_calm,
    worst_first,
)
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, MARGIN, MEMORY_WINDOWS, NEAR_LEVELS, Thresholds
from quota_metrics.verdict.window import UNSEEN, Base, Memory, Onset, PastWindow, Surroundings, Window


class Verdict(NamedTuple):
    """What is said of a client at one broker in one window. On its worst broker it has a memory: hysteresis, onset."""

    window: Window
    is_worst: bool
    utilization: float | None
    utilization_p95: float | None
    culprit_user: str  # who takes most of a shared quota; '' when it is not shared or several take the same
    culprit_client_id: str
    culprit_share: float | None
    level: str
    instant_level: str  # without hysteresis
    reason: str
    own_reason: str  # without the name of another client
    impact: str
    impact_reason: str
    cause: str
    own_cause: str  # without the name of another client
    is_onset: bool
    client_throttle_ms_max: float | None
    busiest_instance: str
    busiest_instance_share: float | None


def evaluate(
    brokers: Sequence[Window], around: Surroundings, memory: Memory, thresholds: Thresholds, window_ms: int
) -> tuple[list[Verdict], Memory]:
    """The verdicts, in the order of `brokers`, and the memory after the window.

    `brokers`: one client in one window at each of its brokers for which `is_worth_a_row`. `memory`: after an earlier
    window; one that is missing between counts as a value of 0, and as not seen.
    """
    at_brokers = [nearness(window, thresholds) for window in brokers]
    worst, steps = min(at_brokers, key=worst_first), thresholds.steps
    start_ms, total_usage = worst.window.window_start_ms, sum([window.usage for window in brokers])
    last_onset, onset = memory.onset, None
    if last_onset is not None and last_onset.start_ms < start_ms - CAUSE_WINDOWS * window_ms:
        last_onset = None
    if is_near(worst, thresholds):
        onset = _onset(worst, total_usage, around, memory, thresholds, window_ms)
    verdicts, bases = [], {}
    for at_broker in at_brokers:
        value, is_worst, cause = at_broker.value or 0.0, at_broker is worst, NO_CAUSE
        bases[at_broker.window.broker_id] = _base(at_broker)
        level = instant_level = level_of(at_broker, reached(value, steps))
        if is_worst:
            level = level_of(at_broker, held(value, memory.past, start_ms, window_ms, steps))
        if level in NEAR_LEVELS and is_worst and onset is not None:
            cause = Cause(onset.cause, onset.own_cause)
        elif level in NEAR_LEVELS and last_onset is not None:
            cause = _since(last_onset, at_broker.window, around, window_ms)
        reason = reason_of(at_broker, level, instant_level, thresholds)
        impact = impact_of(at_broker.window, around.software_name, around.telemetry)
        verdicts.append(
            Verdict(
                at_broker.window,
                is_worst,
                at_broker.utilization,
                at_broker.utilization_p95,
                at_broker.culprit_user,
                at_broker.culprit_client_id,
                at_broker.culprit_share,
                level,
                instant_level,
                reason.text,
                reason.own,
                impact.impact,
                impact.reason,
                cause.text,
                cause.own,
                is_worst and onset is not None,
                impact.throttle_ms,
                impact.busiest_instance,
                impact.busiest_instance_share,
            )
        )
    return verdicts, Memory(_past(worst, total_usage, memory, steps[0], window_ms), bases, onset or last_onset)


def _ago(memory: Memory, windows: int, start_ms: int, window_ms: int) -> PastWindow:
    """The window so many windows before the one that begins at `start_ms`."""
    for window in reversed(memory.past):
        if (start_ms - window.start_ms) // window_ms == windows:
            return window
    return UNSEEN


def _onset(
    worst: Nearness, total_usage: float, around: Surroundings, memory: Memory, thresholds: Thresholds, window_ms: int
) -> Onset | None:
    """Of a client that is near its limit: with its cause, if the window is an onset."""
    window, start_ms = worst.window, worst.window.window_start_ms
    before, earlier = _ago(memory, 1, start_ms, window_ms), _ago(memory, 2, start_ms, window_ms)
    if not was_calm(before, earlier, thresholds):
        return None
    base = memory.bases.get(window.broker_id) if before is not UNSEEN else None
    is_seen = any(past.start_ms >= start_ms - CAUSE_WINDOWS * window_ms for past in memory.past)
    totals = TotalUsage(total_usage, before.total_usage)
    cause = cause_of_onset(worst, base, totals, is_new=around.observed_before and not is_seen)
    return Onset(start_ms, cause.text, cause.own, before.usage)


def _since(onset: Onset, window: Window, around: Surroundings, window_ms: int) -> Cause:
    """The cause of a window after an onset: that of the onset, else how the client's instances changed since."""
    if onset.cause or not around.changes:
        return Cause(onset.cause, onset.own_cause)
    ago = (window.window_start_ms - onset.start_ms) // window_ms
    text = cause_of_instances(window, onset.usage_before, around.changes[ago - 1])
    return Cause(text, text)


def _past(
    worst: Nearness, total_usage: float, memory: Memory, lowest_step: float, window_ms: int
) -> tuple[PastWindow, ...]:
    """What the next window may read: older ones only where their value may still hold a threshold."""
    window, start_ms, least = worst.window, worst.window.window_start_ms, lowest_step - MARGIN
    oldest_ms, lately_ms = start_ms - (MEMORY_WINDOWS - 1) * window_ms, start_ms - (CAUSE_WINDOWS - 1) * window_ms
    past = [
        earlier
        for earlier in memory.past
        if earlier.start_ms >= lately_ms or (earlier.start_ms >= oldest_ms and earlier.value >= least)
    ]
    past.append(PastWindow(start_ms, worst.value or 0.0, window.muted_ms, window.usage, total_usage))
    return tuple(past)


def _base(at_broker: Nearness) -> Base:
    window = at_broker.window
    return Base(
        window.limit,
        window.state != "unknown",
        window.usage,
        window.group_usage,
        window.bucket_user,
        window.bucket_client_id,
        at_broker.culprit_user,
        at_broker.culprit_client_id,
        at_broker.culprit_share,
    )
