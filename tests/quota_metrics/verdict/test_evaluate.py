"""A client's windows, folded: levels that stay, onsets with their causes, what is forgotten."""

from collections.abc import Iterable, Sequence
from typing import Any

from quota_metrics.verdict.evaluate import Verdict, evaluate
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, MEMORY_WINDOWS, Thresholds
from quota_metrics.verdict.window import InstanceChange, Memory, Surroundings, Telemetry, Window
from tests.kit.client_windows import MINUTE_MS, client_window

AT = 36_240_000  # 10:04 UTC
OBSERVED = Surroundings(observed_before=True)
RESTARTED = InstanceChange("1 of 1 instances restarted at 10:03 UTC", 0.0, 0.0, None, None)


def fold(windows: Iterable[Sequence[Window]], around: Surroundings = OBSERVED) -> tuple[list[list[Verdict]], Memory]:
    memory, series = Memory(), []
    for brokers in windows:
        verdicts, memory = evaluate(brokers, around, memory, Thresholds(), MINUTE_MS)
        series.append(verdicts)
    return series, memory


def of_shares(*means: float | None, around: Surroundings = OBSERVED, **other: Any) -> list[Verdict]:
    """On one broker, minute by minute from 10:04; None: the client was not there."""
    windows = [
        [client_window(mean, window_start_ms=AT + minute * MINUTE_MS, **other)]
        for minute, mean in enumerate(means)
        if mean is not None
    ]
    return [verdict for (verdict,) in fold(windows, around)[0]]


def test_a_level_stays_for_one_lower_window() -> None:
    verdicts = of_shares(0.85, 0.7, 0.7, 0.5)
    assert [verdict.level for verdict in verdicts] == ["warn", "warn", "watch", "watch"]
    assert [verdict.instant_level for verdict in verdicts] == ["warn", "watch", "watch", "ok"]
    assert "; warn until it stays lower for two windows" in verdicts[1].reason
    assert [verdict.level for verdict in of_shares(0.85, None, 0.7)] == ["warn", "watch"]


def test_a_series_remembers_ten_windows() -> None:
    assert [verdict.level for verdict in of_shares(0.85, *[0.76] * 11)] == [*["warn"] * 11, "watch"]
    everything, memory = fold([[client_window(0.7, window_start_ms=AT + n * MINUTE_MS)] for n in range(30)])
    assert len(everything) == 30
    assert len(memory.past) == MEMORY_WINDOWS
    # Of a calm client's older windows nothing would be read.
    _, calm = fold([[client_window(0.1, window_start_ms=AT + n * MINUTE_MS)] for n in range(30)])
    assert len(calm.past) == CAUSE_WINDOWS


def test_a_cause_is_told_for_five_windows() -> None:
    verdicts = of_shares(*[0.9] * 7)
    began = "client began at 10:04 UTC with 180.0 kB/s, no usage in the 5 windows before"
    assert [verdict.cause for verdict in verdicts] == [*[began] * 6, ""]
    assert [verdict.is_onset for verdict in verdicts] == [True, *[False] * 6]
    assert {verdict.cause for verdict in of_shares(*[0.9] * 7, around=Surroundings())} == {""}


def test_a_cause_is_told_at_near_levels_only() -> None:
    assert [bool(verdict.cause) for verdict in of_shares(0.9, 0.3, 0.3)] == [True, True, False]


def test_a_later_onset_takes_the_place_of_an_earlier_one() -> None:
    first, _, _, _, second = of_shares(0.9, 0.3, 0.3, 0.3, 0.9)
    assert first.cause.startswith("client began")
    assert (second.is_onset, second.cause) == (True, "")  # it was there all the time, and rose by itself


def test_instances_are_told_after_an_onset_without_a_cause() -> None:
    around = Surroundings(observed_before=True, changes=(RESTARTED,) * CAUSE_WINDOWS)
    verdicts = of_shares(0.3, *[0.9] * 7, around=around)
    assert [verdict.cause for verdict in verdicts] == ["", "", *[RESTARTED.text] * 5, ""]
    assert [verdict.own_cause for verdict in verdicts] == [verdict.cause for verdict in verdicts]


def test_the_change_is_that_since_the_onset() -> None:
    changes = tuple(RESTARTED._replace(text=f"changed {ago} ago") for ago in range(1, CAUSE_WINDOWS + 1))
    verdicts = of_shares(0.3, 0.9, 0.9, 0.9, around=Surroundings(changes=changes))
    assert [verdict.cause for verdict in verdicts] == ["", "", "changed 1 ago", "changed 2 ago"]


def test_the_base_is_the_window_just_before_at_the_same_broker() -> None:
    def lowered(gap: int, broker_id: int = 1) -> str:
        before = client_window(0.9, window_start_ms=AT, limit=400_000.0, rule_limit=400_000.0, broker_id=broker_id)
        now = client_window(0.9, window_start_ms=AT + gap * MINUTE_MS)
        return fold([[before], [now]], Surroundings())[0][1][0].cause

    assert lowered(1) == "limit lowered from 400.0 kB/s to 200.0 kB/s at 10:05 UTC"
    assert lowered(2) == ""
    assert lowered(1, broker_id=2).startswith("load moved to broker 1")


def test_the_worst_broker_has_the_memory() -> None:
    before = [client_window(0.85, window_start_ms=AT, broker_id=1)]
    now = [
        client_window(mean, window_start_ms=AT + MINUTE_MS, broker_id=broker_id)
        for broker_id, mean in ((1, 0.2), (2, 0.7))
    ]
    (_, (other, worst)), memory = fold([before, now])
    assert (worst.window.broker_id, worst.is_worst, worst.level, worst.instant_level) == (2, True, "warn", "watch")
    assert (other.window.broker_id, other.is_worst, other.level, other.cause) == (1, False, "ok", "")
    assert memory.past[-1].total_usage == sum(window.usage for window in now)
    assert sorted(memory.bases) == [1, 2]


def test_other_brokers_tell_the_cause_of_the_onset_before() -> None:
    now = [
        client_window(mean, window_start_ms=AT + MINUTE_MS, broker_id=broker_id)
        for broker_id, mean in ((1, 0.9), (2, 0.85))
    ]
    (((onset,), verdicts), _) = fold([[client_window(0.9, window_start_ms=AT)], now])
    assert [verdict.cause for verdict in verdicts] == [onset.cause, onset.cause]


def test_a_verdict_has_the_words_and_numbers_of_all_parts() -> None:
    shared = {"shared_with": 1, "greediest_user": "bob", "greediest_client_id": "etl", "greediest_usage": 70.0}
    window = client_window(0.5, 0.55, **shared, members_usage=100.0)
    telemetry = Telemetry(produce_throttle_ms=900.0, top_sender="i1", top_sender_share=0.6)
    ((verdict,), _) = evaluate([window], Surroundings(telemetry), Memory(), Thresholds(), MINUTE_MS)
    rule = "at 50.0 % of producer_byte_rate 200.0 kB/s of client-id=orders, 100.0 kB/s headroom on broker 1"
    assert verdict == Verdict(
        window=window,
        is_worst=True,
        utilization=0.5,
        utilization_p95=0.55,
        culprit_user="bob",
        culprit_client_id="etl",
        culprit_share=0.7,
        level="ok",
        instant_level="ok",
        reason=f"{rule}; another client shares this quota, etl takes 70 % of it",
        own_reason=f"{rule}; another client shares this quota, another client takes 70 % of it",
        impact="delayed",
        impact_reason="client felt produce throttle 900 ms; instance i1 reports 60 % of its bytes",
        cause="",
        own_cause="",
        is_onset=False,
        client_throttle_ms_max=900.0,
        busiest_instance="i1",
        busiest_instance_share=0.6,
    )
