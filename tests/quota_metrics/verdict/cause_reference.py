"""Reference of `cause`: plain Python, from the definition of docs/levels.md, and windows to draw for it."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

from tests.kit.levels_reference import amount_text

MINUTE_MS = 60_000
PRODUCE = "producer_byte_rate"


class Change(NamedTuple):
    """A window of client `u a` beside the one before it at the same broker."""

    quota_key: str
    value: float | None
    muted_ms: float
    before_value: float
    before_muted_ms: float
    earlier_value: float
    earlier_muted_ms: float
    limit: float | None
    usage: float
    group_usage: float
    culprit_client_id: str
    culprit_share: float | None
    has_base: int
    base_limit_known: int
    base_limit: float | None
    base_usage: float
    base_group_usage: float
    base_bucket_client_id: str
    base_culprit_client_id: str
    base_culprit_share: float | None
    total_usage: float
    total_before: float
    seen_before: int
    observed_before: int
    start_ms: int
    level: str
    earlier_cause: str
    change: str | None
    change_kept: float | None
    change_growth: float | None
    change_sent: float | None
    change_received: float | None
    usage_before_onset: float
    broker_id: int = 7
    user: str = "u"
    client_id: str = "a"
    culprit_user: str = "u"
    base_culprit_user: str = "u"
    bucket_user: str = "u"
    bucket_client_id: str = ""
    base_bucket_user: str = "u"


def drawn_change(chosen: random.Random) -> Change:
    shared = chosen.random() < 0.6
    group, before = (chosen.choice([0.0, chosen.uniform(1, 100), chosen.uniform(1e5, 1e6)]) for _ in range(2))
    has_base = chosen.random() < 0.8
    before = before if has_base else 0.0
    own, own_before = (total * (chosen.random() if shared else 1.0) for total in (group, before))
    greediest, was = (chosen.choice(["a", "b", "b", "b", "c"]) for _ in range(2))
    share, was_share = (chosen.uniform(0.3, 1.0) if shared and chosen.random() < 0.8 else None for _ in range(2))
    return Change(
        quota_key=chosen.choice([PRODUCE, PRODUCE, "request_percentage"]),
        value=chosen.choice([None, 0.79, 0.8, 1.1, 1.1, 1.1]),
        muted_ms=chosen.choice([0.0, 0.0, 900.0]),
        before_value=chosen.choice([0.0, 0.3, 0.3, 0.74, 0.76, 0.8]),
        before_muted_ms=chosen.choice([0.0] * 5 + [10.0]),
        earlier_value=chosen.choice([0.0, 0.74, 0.76]),
        earlier_muted_ms=chosen.choice([0.0] * 5 + [10.0]),
        limit=chosen.choice([None, 0.0, 50.0, 5e5, chosen.uniform(1, 1e6)]),
        usage=own,
        group_usage=group,
        culprit_client_id=greediest if share else "",
        culprit_share=share,
        has_base=int(has_base),
        base_limit_known=int(chosen.random() < 0.8),
        base_limit=chosen.choice([None, 0.0, 100.0, 1e6, chosen.uniform(1, 1e6)]),
        base_usage=own_before,
        base_group_usage=before,
        base_bucket_client_id=chosen.choice(["", "", "", "a"]),
        base_culprit_client_id=was if was_share else "",
        base_culprit_share=was_share,
        total_usage=own * chosen.choice([1.0, 1.0, 1.5]),
        total_before=own_before + chosen.choice([0.0, 0.0, own, 2 * own]),
        seen_before=chosen.choice([0, 5]),
        observed_before=chosen.choice([0, 1]),
        start_ms=chosen.randrange(0, 10**13, MINUTE_MS),
        level=chosen.choice(["ok", "watch", "unknown", *["warn", "critical", "throttled"] * 3]),
        earlier_cause=chosen.choice(["", "", "told before"]),
        **drawn_instances(chosen),
        usage_before_onset=chosen.choice([0.0, own / 2, own / 2, own, own_before]),
    )


def drawn_instances(chosen: random.Random) -> dict[str, Any]:
    """What instances_query says of the last onset; nothing of most."""
    if chosen.random() < 0.3:
        return dict.fromkeys(("change", "change_kept", "change_growth", "change_sent", "change_received"))
    return {
        "change": chosen.choice(
            ["", "2 instances since 00:00 UTC, 1 before", "2 of 2 instances restarted at 00:00 UTC"]
        ),
        "change_kept": chosen.choice([0.0, 0.5, 1.0]),
        "change_growth": chosen.choice([0.0, 0.2, 1.0]),
        "change_sent": chosen.choice([None, None, 0.2, 0.5, 0.9, 1.0]),
        "change_received": chosen.choice([None, None, 0.3, 0.745, 1.0]),
    }


def cause_of(change: Change) -> str:
    """From the definition of docs/levels.md."""
    if change.level not in ("warn", "critical", "throttled"):
        return ""
    is_near = change.muted_ms > 0 or (change.value is not None and change.value >= 0.8)
    was_calm = change.before_value < 0.75 or (
        change.before_value < 0.8 and change.earlier_value < 0.75 and change.earlier_muted_ms == 0
    )
    if not (is_near and was_calm and change.before_muted_ms == 0):
        return change.earlier_cause or instances(change)
    minutes = change.start_ms // MINUTE_MS
    at = f"{minutes // 60 % 24:02}:{minutes % 60:02} UTC"
    return next((told for told in (tell(change, at) for tell in (lowered, began, moved, rose)) if told), "")


def lowered(change: Change, at: str) -> str:
    """Whether the load of before, under the limit of now, makes at least half of the rise in utilisation."""
    limit, was = change.limit, change.base_limit
    if not (change.has_base and change.base_limit_known) or limit is None or (was is not None and limit >= was):
        return ""
    rate = change.base_group_usage if change.base_bucket_client_id == "" else change.base_usage
    if rate == 0:
        return ""
    if was is not None and limit:  # utilisation: before, after the change of the limit alone, now
        first, alone, last = rate / was, rate / limit, change.group_usage / limit
        explained = alone - first >= 0.5 * (last - first)
    else:  # from none, or to 0
        explained = rate >= 0.5 * change.group_usage
    if not explained:
        return ""
    now = amount_text(limit, change.quota_key)
    if was is None:
        return f"limit of {now} since {at}, none before"
    return f"limit lowered from {amount_text(was, change.quota_key)} to {now} at {at}"


def began(change: Change, at: str) -> str:
    is_new = not change.seen_before and change.observed_before and change.usage > 0
    if not is_new or change.usage < change.group_usage / 2:
        return ""
    with_ = amount_text(change.usage, change.quota_key)
    return f"client began at {at} with {with_}, no usage in the 5 windows before"


def moved(change: Change, at: str) -> str:
    """Whether at least half of what the client sends more here, it sends less elsewhere."""
    here = change.usage - change.base_usage * change.has_base
    group = change.group_usage - change.base_group_usage * change.has_base
    was_here = change.base_usage * change.has_base
    elsewhere = here - max(change.total_usage - change.total_before, 0.0)
    if here <= 0 or change.total_before <= was_here or here < group / 2 or elsewhere < here / 2:
        return ""
    now, total, then, before = (
        amount_text(each, change.quota_key)
        for each in (change.usage, change.total_usage, was_here, change.total_before)
    )
    return f"load moved to broker 7 at {at}: {now} of {total} are there, {then} of {before} before"


def instances(change: Change) -> str:
    """Whether the new instances make at least half of the rise since before the onset."""
    rise = change.usage - change.usage_before_onset
    if not change.change or rise <= 0:
        return ""
    assert change.change_kept is not None
    assert change.change_growth is not None
    sent = change.change_sent if change.quota_key == PRODUCE else None
    if sent is not None:
        explained = sent * change.usage - (1 - change.change_kept) * change.usage_before_onset >= rise / 2
        reported = f"; these report {math.floor(sent * 100 + 0.5)} % of its bytes"
    else:
        explained = change.change_kept == 0 or change.change_growth * change.usage_before_onset >= rise / 2
        reported = ""
    return f"{change.change}{reported}" if explained else ""


def rose(change: Change, at: str) -> str:
    rise = change.group_usage - change.base_group_usage
    is_alone = change.culprit_share is None or change.culprit_client_id == "a"
    if not change.has_base or change.base_bucket_client_id or is_alone or rise <= 0:
        return ""
    assert change.culprit_share is not None
    takes, total = change.culprit_share * change.group_usage, change.base_group_usage
    others = total - change.base_usage
    before = max(others, 0.0)  # nobody, or this client, took most
    greediest = change.base_culprit_client_id
    is_same = bool(greediest) and greediest == change.culprit_client_id
    if change.base_culprit_share is not None and greediest != "a":
        most = change.base_culprit_share * total
        before = most if is_same else max(min(most, total - most - change.base_usage), 0.0)
    if takes - before < rise / 2:
        return ""
    now, then = amount_text(takes, change.quota_key), amount_text(before, change.quota_key)
    bound = "" if change.base_culprit_share is not None and is_same else "at most "
    return f"neighbour {change.culprit_client_id} takes {now} since {at}, {bound}{then} before"
