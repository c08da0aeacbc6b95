"""How a read is split into slices of time."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.clickhouse.slices import SLICE_ROWS, slices_of_time, step_ms
from spark_jobs.time_range import TimeRange


def step(quota_key: str, minute: int, weight: int) -> dict[str, Any]:
    return {"cluster": "c", "quota_key": quota_key, "start_ms": minute * 60_000, "weight": weight}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.integers(1, 2 * SLICE_ROWS)), max_size=60),
    st.integers(1, 64),
)
def test_slices_contain_each_row_once_and_split_no_window(drawn: list[tuple[str, int, int]], cores: int) -> None:
    when = TimeRange(0, 100 * 60_000, 60)
    slices = slices_of_time([step(*of_key) for of_key in drawn], when, cores)
    for key, minute, _ in drawn:
        at_ms = minute * 60_000
        assert sum(part["quota_key"] == key and part["from_ms"] <= at_ms < part["to_ms"] for part in slices) == 1
    assert all(part["from_ms"] % 60_000 == 0 for part in slices)
    assert sum(part["weight"] for part in slices) == sum(weight for *_, weight in drawn)


def test_slices_are_contiguous_and_stay_within_the_range() -> None:
    when = TimeRange(600_000, 3_600_000, 60)
    slices = slices_of_time([step("k", minute, SLICE_ROWS) for minute in (9, 11, 20, 59)], when, 1)
    assert slices[0]["from_ms"] == 600_000  # steps are aligned to the epoch and may begin before
    assert [part["to_ms"] for part in slices[:-1]] == [part["from_ms"] for part in slices[1:]]
    assert slices[-1]["to_ms"] == min(59 * 60_000 + step_ms(when), when.to_ms)
