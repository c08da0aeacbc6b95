"""What another quota means for one client on one broker: verdict, numbers and the reason in words. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exporters.amounts import share_text
from exporters.clickhouse.reader import Row
from quota_metrics.config.entities import text
from quota_metrics.config.resolution import Resolution
from quota_metrics.config.timeline import Epoch, Pair, bucket_key
from quota_metrics.simulation.outcome_text import Verdict

_ORDER = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seen`: a row of what_if_queries.SEEN. `over_s`: seconds in which the clients that share the new limit were above
    it, `peak`: their highest rate / that limit."""

    epoch: Epoch
    pair: Pair
    seen: Row
    over_s: float
    peak: float

    @property
    def after(self) -> Resolution | None:
        return self.epoch.quotas[self.pair].after

    @property
    def is_held(self) -> bool:
        """It was throttled, so it wanted more than was recorded, and the change does not allow it more."""
        return self.seen["muted_s"] > 0 and not self.epoch.may_use_more(self.pair)

    @property
    def verdict(self) -> Verdict:
        was = self.seen["muted_s"] > 0
        if self.after is not None and (self.over_s > 0 or self.is_held):
            return Verdict.STILL if was else Verdict.NEWLY
        return Verdict.FREED if was else Verdict.UNCHANGED

    @property
    def shared_with(self) -> int:
        key = bucket_key(self.pair, self.after)
        return len(self.epoch.groups[key]) - 1 if key else 0

    def reason(self, range_s: int) -> str:
        if self.after is None:
            return "no quota applies"
        shared = f" that it shares with {self.shared_with} more" if self.shared_with else ""
        limit = f"{self.after.value:.0f} bytes/s of {text(self.after.entity)}{shared}"
        if self.over_s > 0:
            return f"{self.over_s:.0f} of {range_s} s above {limit}, at most at {share_text(self.peak)}"
        if self.is_held:
            return f"it was throttled, so it wanted more than was recorded: {limit} allows no more than before"
        fits = f"never above {share_text(self.peak)} of {limit}"
        return f"{fits}; it was throttled, so it wanted more" if self.verdict is Verdict.FREED else fits

    def document(self, range_s: int) -> dict[str, Any]:
        """As JSON."""
        quota_key, user, client_id = self.pair
        before = self.epoch.quotas[self.pair].before
        return {
            "user": user,
            "client_id": client_id,
            "quota_key": quota_key,
            "broker_id": self.seen["broker_id"],
            "verdict": self.verdict,
            "reason": self.reason(range_s),
            "before": {**_side(before), "throttled_s": min(self.seen["muted_s"], range_s)},
            "after": {**_side(self.after), "over_s": self.over_s, "peak": self.peak, "shared_with": self.shared_with},
        }


def documents(outcomes: Sequence[Outcome], range_s: int, most: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The first `most`, the newly throttled and those longest above the limit first, and the number of each verdict."""
    ordered = [(outcome.verdict, outcome) for outcome in outcomes]
    ordered.sort(key=lambda one: (_ORDER.index(one[0]), -one[1].over_s, -one[1].seen["muted_s"], one[1].pair))
    counts = Counter(str(verdict) for verdict, _ in ordered)
    return [outcome.document(range_s) for _, outcome in ordered[:most]], dict(sorted(counts.items()))


def _side(rule: Resolution | None) -> dict[str, Any]:
    return {"limit": None if rule is None else rule.value, "entity": None if rule is None else dict(rule.entity)}
