"""How near a client is to its limit, and why: the numbers, the level, its memory, and the words of the reason.

Read it from top to bottom. The definitions in words: docs/levels.md.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from exporters.model import BYTE_KEYS, CONTROLLER, QuotaKey
from quota_metrics.verdict.number_words import amount, duration, name_of_other, percent, rounded, tenths
from quota_metrics.verdict.thresholds import MARGIN, MEMORY_WINDOWS, STEPS, Thresholds
from quota_metrics.verdict.window import PastWindow, Window

_MOST_SHARE: Final = 0.5  # share of a shared quota from which a client is named
_REQUEST_THROTTLE_MS: Final = 1000.0  # the longest by request_percentage (ClientRequestQuotaManager), by default
_BURST: Final = 0.1  # by how much p95 exceeds the mean when usage is said to come in bursts


# The numbers.


class Nearness(NamedTuple):
    """How near a client is to its limit at one broker."""

    window: Window
    utilization: float | None  # shares of the limit by the mean and by the p95 of all who share it; None without one
    utilization_p95: float | None
    value: float | None  # the greater of them: by it levels go
    is_throttled: bool
    culprit_user: str  # who takes more of a shared quota than any other client; '' when several take the same
    culprit_client_id: str
    culprit_share: float | None


def is_worth_a_row(window: Window) -> bool:
    """Byte rates always are; other quotas only with a limit, or when the client was muted."""
    return window.quota_key in BYTE_KEYS or window.limit is not None or window.muted_ms > 0


def nearness(window: Window, thresholds: Thresholds) -> Nearness:
    """The numbers from which a level follows."""
    mean = p95 = None
    # Of some quotas only the throttling can be seen: a rate of 0 means that the rate is not measured.
    is_quiet = window.group_usage == 0 and window.quota_key not in BYTE_KEYS
    is_unmeasured = is_quiet and (window.throttle_ms > 0 or window.muted_ms > 0)
    if window.limit is not None and not is_unmeasured:
        mean, p95 = _share(window.group_usage, window.limit), _share(window.group_p95, window.limit)
    value = p95 if mean is None or (p95 is not None and mean < p95) else mean
    user = client_id = ""
    share = None
    if window.shared_with > 0 and window.greediest_usage > 0:
        user, client_id = window.greediest_user, window.greediest_client_id
        if window.members_usage > 0:
            share = window.greediest_usage / window.members_usage
    throttled = window.muted_ms > 0 and window.muted_ms >= thresholds.muted_share * 1000 * window.elapsed_s
    return Nearness(window, mean, p95, value, throttled, user, client_id, share)


def _share(rate: float, limit: float) -> float | None:
    """Share of the limit. Any usage exceeds a limit of 0."""
    if limit > 0:
        return rate / limit
    return math.inf if rate > 0 else None


def worst_first(at_broker: Nearness) -> tuple[bool, float, float, int]:
    """Sort key of a client's brokers: where it is throttled, then nearest to the limit, then muted longest."""
    value = -1.0 if at_broker.value is None else at_broker.value
    return not at_broker.is_throttled, -value, -at_broker.window.muted_ms, at_broker.window.broker_id


# The level.


def level_of(at_broker: Nearness, holding: int) -> str:
    """The level when so many of the ascending thresholds hold."""
    if at_broker.is_throttled:
        return "throttled"
    if at_broker.window.muted_ms > 0:
        return "critical"
    if at_broker.window.state == "unknown":
        return "unknown"
    return "ok" if at_broker.value is None or holding == 0 else STEPS[holding - 1]


def reached(value: float, steps: Sequence[float]) -> int:
    """How many of the ascending thresholds a value reaches."""
    number = 0
    for step in steps:
        if value < step:
            break
        number += 1
    return number


def held(value: float, past: Sequence[PastWindow], start_ms: int, window_ms: int, steps: Sequence[float]) -> int:
    """How many of the ascending thresholds hold in the window that begins at `start_ms`, after the windows of `past`.

    One that is reached holds until the value is below it by more than MARGIN in two windows in a row. A missing window
    counts as 0, and what is older than MEMORY_WINDOWS is forgotten.
    """
    is_reached = reached(value, steps)
    highest = 0.0
    for window in past:
        if window.value > highest:
            highest = window.value
    if is_reached >= reached(highest, steps):
        return is_reached
    history = [0.0] * MEMORY_WINDOWS
    for window in past:
        ago = (start_ms - window.start_ms) // window_ms
        if 0 < ago <= MEMORY_WINDOWS:
            history[-ago] = window.value
    holding, before = 0, math.inf
    for now in (*history, value):
        while holding > 0 and max(now, before) < steps[holding - 1] - MARGIN:
            holding -= 1
        holding = max(holding, reached(now, steps))
        before = now
    return holding


def is_near(at_broker: Nearness, thresholds: Thresholds) -> bool:
    """Whether the client is at `warn` or muted."""
    return at_broker.window.muted_ms > 0 or (at_broker.value is not None and at_broker.value >= thresholds.warn)


def was_calm(before: PastWindow, earlier: PastWindow, thresholds: Thresholds) -> bool:
    """Whether a client that is near its limit was clearly below `warn` and not muted in the window before: its onset.

    `earlier`: two windows before. Between it and the onset may be a window that is just below `warn`: a change in its
    last seconds moves an average only in part.
    """
    clearly = thresholds.warn - MARGIN
    was_calm_earlier = before.value < thresholds.warn and earlier.value < clearly and earlier.muted_ms == 0
    return before.muted_ms == 0 and (before.value < clearly or was_calm_earlier)


# The reason: the level in words.


class LevelReason(NamedTuple):
    """`own`: without the name of another client."""

    text: str
    own: str


def reason_of(at_broker: Nearness, level: str, instant_level: str, thresholds: Thresholds) -> LevelReason:
    window, mean, p95 = at_broker.window, at_broker.utilization, at_broker.utilization_p95
    text = _why_muted(at_broker, thresholds) if window.muted_ms > 0 else _why(at_broker)
    if window.limit and mean is not None and p95 is not None and p95 >= mean + _BURST:
        text += f"; bursts to {percent(p95)}"
    if level != instant_level and level in STEPS:
        text += f"; {level} until it stays lower for two windows"
    if window.shared_with == 0 or window.state != "limited":
        return LevelReason(text, text)
    if window.shared_with == 1:
        text += "; another client shares this quota"
    else:
        text += f"; {window.shared_with} other clients share this quota"
    share = at_broker.culprit_share
    if share is None or share < _MOST_SHARE:
        return LevelReason(text, text)
    takes = f"takes {rounded(share * 100)} % of it"
    if at_broker.culprit_user == window.user and at_broker.culprit_client_id == window.client_id:
        text += f", this client {takes}"
        return LevelReason(text, text)
    other = name_of_other(at_broker.culprit_user, at_broker.culprit_client_id, window.client_id)
    return LevelReason(f"{text}, {other} {takes}", f"{text}, another client {takes}")


def _why(at_broker: Nearness) -> str:
    """Of a client that was not muted."""
    window, mean = at_broker.window, at_broker.utilization
    if window.decided_by:
        instead = "" if window.rule_limit is None else f" instead of {_rule(window)}"
        return f"the brokers use {window.decided_by}{instead}"
    if window.state == "unknown":
        return "no quota was observed yet"
    if window.limit is None:
        return "no quota applies"
    if mean is None and window.limit == 0:
        return f"no usage, and {_rule(window)} allows none"
    if mean is None:
        return f"throttled by {_rule(window)}{_at_broker(window)}"
    if window.limit == 0:
        return f"above {_rule(window)}{_at_broker(window)}"
    headroom = amount(max(window.limit - window.group_usage, 0.0), window.quota_key)
    return f"at {percent(mean)} of {_rule(window)}, {headroom} headroom{_at_broker(window)}"


def _why_muted(at_broker: Nearness, thresholds: Thresholds) -> str:
    window = at_broker.window
    muted = f"muted {tenths(window.muted_ms / 1000)} s of {window.elapsed_s} s{_at_broker(window)}"
    if window.throttle_ms > 0:
        times = f", throttle times up to {duration(window.throttle_ms)}"
    else:
        times = " by an earlier throttle time"
    return f"{muted}{times}: {_what_muted(at_broker, thresholds)}"


def _what_muted(at_broker: Nearness, thresholds: Thresholds) -> str:
    window, mean = at_broker.window, at_broker.utilization
    # A response carries only the longest of its throttle times.
    is_of_requests = window.quota_key == QuotaKey.REQUEST_PERCENTAGE
    another = "another quota" if is_of_requests else "another quota such as request_percentage"
    if window.state == "unknown":
        is_unexplained = window.decided_by != "" or window.rule_limit is not None
        return _unexplained(window) if is_unexplained else "no quota was observed yet"
    if window.limit is None:
        return f"no {window.quota_key} quota applies: {another}, or a limit of the brokers' own"
    if mean is None:
        return f"by {_rule(window)}"
    if mean >= thresholds.watch or window.usage_max > window.limit:
        return f"wants more than {_rule(window)}"
    if window.quota_key in BYTE_KEYS and window.throttle_ms > _REQUEST_THROTTLE_MS:
        return f"at {percent(mean)} of {_rule(window)}: bursts, or batches that do not fit into its window"
    return f"at {percent(mean)} of {_rule(window)}: short bursts, or {another}"


def _unexplained(window: Window) -> str:
    """What the brokers use is not the rule: a class of theirs, or what throttle times imply."""
    texts = [] if window.rule_limit is None else [f"not explained by {_rule(window)}"]
    if window.decided_by:
        texts.append(f"the brokers use {window.decided_by}")
    if window.implied_limit is not None:
        texts[-1] += f", implied limit {amount(window.implied_limit, window.quota_key)}"
    return "; ".join(texts)


def _rule(window: Window) -> str:
    """`producer_byte_rate 200.0 kB/s of client-id=app`."""
    of_entity = f" of {window.matched_entity}" if window.matched_entity else ""
    return f"{window.quota_key} {amount(window.rule_limit or 0.0, window.quota_key)}{of_entity}"


def _at_broker(window: Window) -> str:
    return " at the controller" if window.broker_id == CONTROLLER else f" on broker {window.broker_id}"
