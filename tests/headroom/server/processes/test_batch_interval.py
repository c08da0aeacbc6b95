"""The worker collects for twice as long when there are many points a second."""

from __future__ import annotations

import pytest

from headroom.server.processes.storage_process import next_interval_s


@pytest.mark.parametrize(
    ("last_s", "points", "expected_s"),
    [
        (1.0, 0, 1.0),
        (1.0, 99_999, 1.0),
        (1.0, 100_000, 2.0),
        (2.0, 199_999, 1.0),  # the rate counts, not the size of the batch
        (2.0, 800_000, 2.0),
    ],
)
def test_interval_follows_the_rate_of_points(last_s: float, points: int, expected_s: float) -> None:
    assert next_interval_s(1.0, last_s, points) == expected_s
