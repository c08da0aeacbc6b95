"""The default of a fleet and who is beyond it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.suggestion.suggested_quotas import TARGET, Confidence, bulk, confidence, fitting

DEMANDS = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=60)


@given(DEMANDS)
def test_at_least_three_quarters_are_within_the_fence(demands: list[float]) -> None:
    majority = bulk(demands)
    within = sorted(demand for demand in demands if demand <= majority.fence)
    assert (len(within), within[-1]) == (majority.size, majority.highest)
    assert majority.size >= 0.75 * (len(demands) - 1)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.5])
def test_a_log_normal_fleet_has_no_outliers_but_planted_ones(sigma: float) -> None:
    """Of 40 fleets of 200; the median of 100 is known, planted are clients five deviations above it."""
    draw = random.Random(int(sigma * 10))
    false = 0
    for _ in range(40):
        fleet = [100 * math.exp(draw.gauss(0, sigma)) for _ in range(200)]
        planted = 100 * math.exp(max(7 * sigma, 1.2))
        majority = bulk([*fleet, planted])
        false += sum(demand > majority.fence for demand in fleet)
        assert planted > majority.fence
    assert false <= 16  # 8000 clients, of which one in 2,500 is beyond: 3 are expected


@pytest.mark.parametrize(
    ("demands", "size"),
    [
        ([5.0], 1),
        ([1.0, 100.0], 1),
        ([1.0, 1.0, 100.0], 2),
        ([7.0] * 30 + [14.0], 31),  # twice as much is no outlier
        ([7.0] * 30 + [14.1], 30),
        ([1e-3] * 100 + [50.0] * 110, 210),  # half of the clients are idle
        ([1.0] * 80 + [1000.0] * 20, 80),
    ],
)
def test_bulk_of_small_and_mixed_fleets(demands: list[float], size: int) -> None:
    assert bulk(demands).size == size


@given(st.floats(1e-6, 1e15), st.sampled_from(["producer_byte_rate", "request_percentage"]))
def test_a_limit_fits_and_is_round(demand: float, key: str) -> None:
    limit = fitting(demand, key)
    assert limit >= demand / TARGET * (1 - 1e-9)
    assert limit <= max(demand / TARGET * 1.1, demand / TARGET + (key == "producer_byte_rate")) + 1e-9
    assert float(f"{limit:.2g}") == pytest.approx(limit)
    assert key == "request_percentage" or limit.is_integer()


@pytest.mark.parametrize(
    ("days", "is_certain", "expected"),
    [(1, True, "low"), (2, True, "medium"), (6, True, "medium"), (7, True, "high"), (30, False, "low")],
)
def test_confidence_by_days(days: int, is_certain: bool, expected: str) -> None:
    assert confidence(days, is_certain=is_certain) is Confidence(expected)
