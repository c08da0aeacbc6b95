"""Reference of levels and reasons: plain Python, from the definitions of docs/levels.md, over windows_reference."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from tests.kit.windows_reference import Expected, Key

BYTE_KEYS = ("producer_byte_rate", "consumer_byte_rate")
STEPS = (("watch", 0.6), ("warn", 0.8), ("critical", 0.95))


class ClientVerdict(NamedTuple):
    """A client on its worst broker in one window."""

    broker_id: int
    level: str
    limit: float | None
    usage: float
    utilization: float | None
    utilization_p95: float | None
    muted_ms: float
    reason: str
    implied_limit: float | None


class _AtBroker(NamedTuple):
    broker_id: int
    window: Expected
    mean: float | None
    p95: float | None

    @property
    def value(self) -> float | None:
        shares = [share for share in (self.mean, self.p95) if share is not None]
        return max(shares) if shares else None

    @property
    def is_throttled(self) -> bool:
        return self.window.muted_ms >= 600


def client_verdicts(
    windows: Mapping[Key, Expected], quota_key: str, window_ms: int = 60_000
) -> dict[tuple[str, str, int], ClientVerdict]:
    """By user, client-id and window; levels remember the ten windows before."""
    brokers: dict[tuple[str, str, int], list[_AtBroker]] = {}
    for (user, client_id, broker_id, start), window in windows.items():
        unmeasured = quota_key not in BYTE_KEYS and window.group_usage == 0 and (window.throttle_ms or window.muted_ms)
        shares = [None if unmeasured else _share(rate, window.limit) for rate in (window.group_usage, window.group_p95)]
        if quota_key in BYTE_KEYS or window.limit is not None or window.muted_ms > 0:  # else it is not shown
            brokers.setdefault((user, client_id, start), []).append(_AtBroker(broker_id, window, *shares))
    worst = {key: max(several, key=_badness) for key, several in brokers.items()}
    found = {}
    for (user, client_id, start), one in worst.items():
        before = [worst.get((user, client_id, start - ago * window_ms)) for ago in range(10, -1, -1)]
        held = _held([(each.value or 0.0) if each else 0.0 for each in before])
        found[user, client_id, start] = ClientVerdict(
            one.broker_id,
            _level(one, held),
            one.window.limit,
            one.window.usage,
            one.mean,
            one.p95,
            one.window.muted_ms,
            _reason(one, quota_key, (user, client_id), _level(one, held), _level(one, _held([one.value or 0.0]))),
            one.window.implied_limit,
        )
    return found


def _share(rate: float, limit: float | None) -> float | None:
    if limit is None:
        return None
    if limit == 0:
        return math.inf if rate > 0 else None
    return rate / limit


def _badness(one: _AtBroker) -> tuple[bool, float, float, int]:
    return one.is_throttled, -1.0 if one.value is None else one.value, one.window.muted_ms, -one.broker_id


def _held(values: list[float]) -> int:
    """How many thresholds hold at the last value: reached, and since then never two values in a row 0.05 below."""
    holding = 0
    for number, (_, step) in enumerate(STEPS, start=1):
        holds, low = False, 0
        for value in values:
            low = low + 1 if value < step - 0.05 else 0
            holds = value >= step or (holds and low < 2)
        holding = number if holds else holding
    return holding


def _level(one: _AtBroker, holding: int) -> str:
    if one.is_throttled:
        return "throttled"
    if one.window.muted_ms > 0:
        return "critical"
    if one.window.state == "unknown":
        return "unknown"
    return "ok" if one.value is None or not holding else STEPS[holding - 1][0]


def _digits(value: float, digits: int) -> str:
    """Rounded half up. The expressions add a half to the binary number, so this does."""
    return str(Decimal(math.floor(value * 10**digits + 0.5)).scaleb(-digits).quantize(Decimal(1).scaleb(-digits)))


def amount_text(value: float, quota_key: str) -> str:
    units = {"request_percentage": "%", "controller_mutation_rate": "mutations/s"}
    if quota_key in units:
        return f"{_digits(value, 1)} {units[quota_key]}"
    for power, prefix in enumerate(("", "k", "M", "G", "T")):
        if value < 999.95 * 1000**power:
            return f"{_digits(value / 1000**power, 1 if power else 0)} {prefix}B/s"
    return f"{_digits(value / 1e15, 1)} PB/s"


def _percent(share: float) -> str:
    return f"{_digits(share * 100, 1)} %"


def _reason(one: _AtBroker, quota_key: str, client: tuple[str, str], level: str, instant_level: str) -> str:
    window = one.window
    entity = f" of {window.matched_entity}" if window.matched_entity else ""
    rule = f"{quota_key} {amount_text(window.rule_limit or 0.0, quota_key)}{entity}"
    at = f"at {_percent(one.mean)} of {rule}" if one.mean is not None and math.isfinite(one.mean) else ""
    parts = [_throttled(one, quota_key, rule, at) if window.muted_ms > 0 else _calm(one, quota_key, rule, at)]
    if window.limit and one.mean is not None and one.p95 is not None and one.p95 >= one.mean + 0.1:
        parts.append(f"bursts to {_percent(one.p95)}")
    if level != instant_level and level in ("watch", "warn", "critical"):
        parts.append(f"{level} until it stays lower for two windows")
    if window.shared_with and window.state == "limited":
        others = "another client shares" if window.shared_with == 1 else f"{window.shared_with} other clients share"
        parts.append(f"{others} this quota{_takes(window, client)}")
    return "; ".join(parts)


def _takes(window: Expected, client: tuple[str, str]) -> str:
    if not window.greediest_usage or window.greediest_usage / window.members_usage < 0.5:
        return ""
    user, client_id = window.greediest
    who = client_id if client_id else "(no client id)"
    if client_id == client[1]:
        who = "this client" if user == client[0] else f"user={user}"
    return f", {who} takes {_digits(window.greediest_usage / window.members_usage * 100, 0)} % of it"


def _throttled(one: _AtBroker, quota_key: str, rule: str, at: str) -> str:
    window = one.window
    seconds = window.throttle_ms >= 999.5
    times = f"{_digits(window.throttle_ms / 1000, 1)} s" if seconds else f"{_digits(window.throttle_ms, 0)} ms"
    another = "another quota" if quota_key == "request_percentage" else "another quota such as request_percentage"
    longest = f", throttle times up to {times}" if window.throttle_ms > 0 else " by an earlier throttle time"
    if window.state == "unknown" and (window.decided_by or window.rule_limit is not None):
        why = _unexplained(window, quota_key, rule)
    elif window.state == "unknown":
        why = "no quota was observed yet"
    elif window.limit is None:
        why = f"no {quota_key} quota applies: {another}, or a limit of the brokers' own"
    elif (one.mean is None and one.p95 is None and window.usage_max <= window.limit) or one.mean is None:
        why = f"by {rule}"
    else:
        wants_more = one.mean >= 0.6 or window.usage_max > window.limit
        is_of_bytes = quota_key in BYTE_KEYS and window.throttle_ms > 1000
        seldom = "bursts, or batches that do not fit into its window" if is_of_bytes else f"short bursts, or {another}"
        why = f"wants more than {rule}" if wants_more else f"{at}: {seldom}"
    return f"muted {_digits(window.muted_ms / 1000, 1)} s of 60 s on broker {one.broker_id}{longest}: {why}"


def _unexplained(window: Expected, quota_key: str, rule: str) -> str:
    parts = [f"not explained by {rule}"] if window.rule_limit is not None else []
    parts += [f"the brokers use {window.decided_by}"] if window.decided_by else []
    implied = window.implied_limit
    return "; ".join(parts) + ("" if implied is None else f", implied limit {amount_text(implied, quota_key)}")


def _calm(one: _AtBroker, quota_key: str, rule: str, at: str) -> str:
    window = one.window
    if window.decided_by:
        return f"the brokers use {window.decided_by}{f' instead of {rule}' if window.rule_limit is not None else ''}"
    if window.state == "unknown":
        return "no quota was observed yet"
    if window.limit is None:
        return "no quota applies"
    if one.mean is None:
        return (
            f"no usage, and {rule} allows none"
            if window.limit == 0
            else f"throttled by {rule} on broker {one.broker_id}"
        )
    if window.limit == 0:
        return f"above {rule} on broker {one.broker_id}"
    headroom = amount_text(max(window.limit - window.group_usage, 0.0), quota_key)
    return f"{at}, {headroom} headroom on broker {one.broker_id}"
