"""What changed when a client came near its limit: `cause`.

At the onset of a level (`was_calm` of level_and_reason.py), the window is compared with the one before it at the same
broker. The first of these changes is named that explains at least half of the rise: the limit fell, the client began to
use the quota, its load moved to this broker, a neighbour in a shared quota rose. The text stays for CAUSE_WINDOWS. When
it is none of these, the windows after the onset look for new instances of the client (changes.py). Not the onset
itself, because what instances send is known when they report it. In words: docs/levels.md.
"""

from typing import Final, NamedTuple

from exporters.model import QuotaKey
from quota_metrics.verdict.level_and_reason import Nearness
from quota_metrics.verdict.number_words import amount, clock, name_of_other, rounded
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from quota_metrics.verdict.window import Base, InstanceChange, Window

_MOST: Final = 0.5  # share of the rise that is explained by what is named
_NO_BASE: Final = Base(None, False, 0.0, 0.0, "", "", "", "", None)


class Cause(NamedTuple):
    """`own`: without the name of another client. Both are '' when nothing explains the rise."""

    text: str = ""
    own: str = ""


NO_CAUSE: Final = Cause()


class TotalUsage(NamedTuple):
    """The rates of a client at all its brokers, in a window and in the one before; 0 without usage."""

    usage: float
    before: float


def cause_of_onset(now: Nearness, base: Base | None, totals: TotalUsage, *, is_new: bool) -> Cause:
    """What explains the rise of a window that is an onset, the first of these changes.

    `base`: the window before at the same broker; None without usage there. `is_new`: the client had no usage in the
    CAUSE_WINDOWS before, in which the cluster had: after a start of Headroom nobody is new.
    """
    window, before = now.window, base or _NO_BASE
    text = ""
    if base is not None and _limit_explains(window, base):
        limit, at = amount(window.limit or 0.0, window.quota_key), clock(window.window_start_ms)
        text = f"limit of {limit} since {at}, none before"
        if base.limit is not None:
            text = f"limit lowered from {amount(base.limit, window.quota_key)} to {limit} at {at}"
    elif is_new and window.usage > 0 and window.usage >= _MOST * window.group_usage:
        usage, at = amount(window.usage, window.quota_key), clock(window.window_start_ms)
        text = f"client began at {at} with {usage}, no usage in the {CAUSE_WINDOWS} windows before"
    elif _moved(window, before, totals):
        text = _moved_text(window, before, totals)
    elif base is not None and _neighbour_rose(now, base):
        return _neighbour_cause(now, base)
    return Cause(text, text)


# The limit: what was used before counts against it, of the same quota by all who share it, of another one by the client
# alone. Utilisation would have risen from rate / before to rate / now: compared without a division.


def _limit_explains(window: Window, base: Base) -> bool:
    now, before = window.limit, base.limit
    if not base.limit_known or now is None or (before is not None and now >= before):
        return False
    rate = base.group_usage if _is_same_bucket(window, base) else base.usage
    if rate <= 0:
        return False
    if before is None:
        return rate >= _MOST * window.group_usage
    return rate * (before - now) >= _MOST * (window.group_usage * before - rate * now)


# The client itself.


# The broker: what the client sends more there, it sends less elsewhere.


def _moved(window: Window, before: Base, totals: TotalUsage) -> bool:
    rose_here = window.usage - before.usage
    rose_at_all = max(totals.usage - totals.before, 0.0)
    return (
        rose_here > 0
        and totals.before > before.usage
        and rose_here >= _MOST * (window.group_usage - before.group_usage)
        and rose_here - rose_at_all >= _MOST * rose_here
    )


def _moved_text(window: Window, before: Base, totals: TotalUsage) -> str:
    key = window.quota_key
    now, then = amount(window.usage, key), amount(before.usage, key)
    return (
        f"load moved to broker {window.broker_id} at {clock(window.window_start_ms)}: "
        f"{now} of {amount(totals.usage, key)} are there, {then} of {amount(totals.before, key)} before"
    )


# A neighbour: who takes most of a shared quota now.


def _neighbour_rose(now: Nearness, base: Base) -> bool:
    window, share = now.window, now.culprit_share
    is_this_client = now.culprit_user == window.user and now.culprit_client_id == window.client_id
    if share is None or is_this_client or not _is_same_bucket(window, base) or window.group_usage <= base.group_usage:
        return False
    rise = share * window.group_usage - _neighbour_took(now, base)
    return rise >= _MOST * (window.group_usage - base.group_usage)


def _was_greediest(now: Nearness, base: Base) -> bool:
    is_same = base.culprit_user == now.culprit_user and base.culprit_client_id == now.culprit_client_id
    return base.culprit_share is not None and is_same


def _neighbour_took(now: Nearness, base: Base) -> float:
    """What the neighbour took before, at most. Of the window before only its greediest client is known, so another one
    had at most what that one had, and at most what is left without it and this client."""
    window = now.window
    greediest = (base.culprit_share or 0.0) * base.group_usage
    if _was_greediest(now, base):
        return greediest
    was_this_client = base.culprit_user == window.user and base.culprit_client_id == window.client_id
    if base.culprit_share is None or was_this_client:
        return max(base.group_usage - base.usage, 0.0)
    return max(min(greediest, base.group_usage - greediest - base.usage), 0.0)


def _neighbour_cause(now: Nearness, base: Base) -> Cause:
    window = now.window
    takes = amount((now.culprit_share or 0.0) * window.group_usage, window.quota_key)
    took = amount(_neighbour_took(now, base), window.quota_key)
    at_most = "" if _was_greediest(now, base) else "at most "
    rose = f"takes {takes} since {clock(window.window_start_ms)}, {at_most}{took} before"
    neighbour = name_of_other(now.culprit_user, now.culprit_client_id, window.client_id)
    return Cause(f"neighbour {neighbour} {rose}", f"another client {rose}")


def _is_same_bucket(window: Window, base: Base) -> bool:
    return base.bucket_user == window.bucket_user and base.bucket_client_id == window.bucket_client_id


# Instances: with what new ones report their part of the rise is known; else when all are new, or by their number alone.


def cause_of_instances(window: Window, usage_before: float, change: InstanceChange) -> str:
    """How the client's instances changed since an onset, if that explains the rise since `usage_before`, the client's
    rate in the window before the onset; else ''."""
    rise = window.usage - usage_before
    if not change.text or rise <= 0:
        return ""
    if window.quota_key == QuotaKey.PRODUCER_BYTE_RATE:
        share = change.sent_share
    elif window.quota_key == QuotaKey.CONSUMER_BYTE_RATE:
        share = change.received_share
    else:
        share = None
    if share is None:
        return change.text if change.kept == 0 or change.growth * usage_before >= _MOST * rise else ""
    if share * window.usage - (1 - change.kept) * usage_before < _MOST * rise:
        return ""
    return f"{change.text}; these report {rounded(share * 100)} % of its bytes"
