"""The rate of the scripted producers."""

from __future__ import annotations

import pytest

from headroom.demo.script import Pace


def sent(pace: Pace, ticks: list[float]) -> int:
    return sum(pace.due(tick) for tick in ticks)


def ticks(start_s: float, end_s: float, step_s: float = 0.1) -> list[float]:
    return [start_s + step_s * n for n in range(1, round((end_s - start_s) / step_s) + 1)]


@pytest.mark.parametrize("step_s", [0.05, 0.1, 0.37])
def test_rate_is_independent_of_the_tick_length(step_s: float) -> None:
    pace = Pace(170_000, 8_000, ramp_s=2)
    sent(pace, ticks(0, 10, step_s))
    in_a_minute = sent(pace, ticks(10, 70, step_s)) * 8_000
    assert in_a_minute == pytest.approx(60 * 170_000, rel=0.01)


def test_long_stall_is_not_fully_caught_up() -> None:
    pace = Pace(100_000, 1_000, ramp_s=0)
    sent(pace, ticks(0, 10))
    assert pace.due(15.0) == 100  # a second's worth
    assert pace.due(15.1) == 10
