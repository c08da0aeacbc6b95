"""The outcome for a client as a verdict and a sentence. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from exporters.model import QuotaKey
from quota_metrics.config.entities import text
from quota_metrics.simulation.outcomes import ClientOutcome
from quota_metrics.simulation.replay import GIVE_UP_MS

# Observed: of two equal consumers one was throttled all the time and the other never. A throttled fetch has more to
# return at each retry, while the other's small fetches keep the window full.
_CHANCE = "which of the consumers that share it are throttled is random, it may be a single one"


class OutcomeKind(StrEnum):
    """Kinds of outcomes, in the order of the output."""

    NEWLY = "newly throttled"
    STILL = "still throttled"
    FREED = "freed"
    UNCHANGED = "unchanged"


def verdict(outcome: ClientOutcome) -> OutcomeKind:
    """Whether the client is throttled at all, before and after. Clients that are not affected are unchanged."""
    if not outcome.affected:
        return OutcomeKind.UNCHANGED
    if outcome.after.throttled_ms > 0:
        return OutcomeKind.STILL if outcome.before.throttled_ms > 0 else OutcomeKind.NEWLY
    return OutcomeKind.FREED if outcome.before.throttled_ms > 0 else OutcomeKind.UNCHANGED


def reason(outcome: ClientOutcome) -> str:
    """The reason of the verdict, and how certain it is."""
    if not outcome.affected:
        return "the change does not affect it"
    match verdict(outcome):
        case OutcomeKind.UNCHANGED:
            if outcome.after.rule is None:
                return "no quota applies"
            if outcome.peak > 1 and outcome.shared_with:
                return f"others are throttled by {_limit(outcome)}: {_CHANCE}"
            return f"never above {outcome.peak:.0%} of {_limit(outcome)}"
        case OutcomeKind.FREED:
            if outcome.after.rule is None:
                return "no quota applies any more"
            return (
                f"the recorded usage fits: never above {outcome.peak:.0%} of {_limit(outcome)}; it was throttled, so it"
                " wanted more: it would use all of the new limit, or an unknown part of it"
            )
        case _:
            return "; ".join(_reasons_of_throttled(outcome))


def worst_first(outcomes: list[ClientOutcome]) -> list[ClientOutcome]:
    """Sort key: by verdict, the longest throttled first, unaffected clients last."""
    order = list(OutcomeKind)
    return sorted(
        outcomes,
        key=lambda outcome: (
            order.index(verdict(outcome)),
            not outcome.affected,
            -outcome.after.throttled_ms,
            -outcome.before.throttled_ms,
            -outcome.peak,
            outcome.client,
        ),
    )


def _reasons_of_throttled(outcome: ClientOutcome) -> Iterator[str]:
    if outcome.after.rule is None:
        yield "throttled by another quota, as before"
        return
    yield f"comes to {_limit(outcome)}"
    if outcome.shared_with and outcome.client.quota_key == QuotaKey.CONSUMER_BYTE_RATE:
        yield _CHANCE
    if outcome.delayed_bytes:
        yield f"{outcome.delayed_bytes} bytes late by up to {outcome.delay_ms_max / 1000:.1f} s"
    if outcome.waiting_bytes:
        yield f"{outcome.waiting_bytes} bytes still waiting at the end"
    if outcome.given_up_bytes:
        yield f"{outcome.given_up_bytes} bytes wait over {GIVE_UP_MS // 1000} s, Java's delivery.timeout.ms, and fail"
    if outcome.before.throttled_ms > 0:
        yield "at least this long: it was throttled, so it wanted more than was recorded"


def _limit(outcome: ClientOutcome) -> str:
    rule = outcome.after.rule
    assert rule is not None
    shared = f" that it shares with {outcome.shared_with} more" if outcome.shared_with else ""
    return f"{rule.value:.0f} bytes/s of {text(rule.entity)}{shared}"
