"""How a read is split into slices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.clickhouse.source import SLICE_ROWS, StepWeight, slices_of_time, step_ms
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.integers(1, 2 * SLICE_ROWS)), max_size=60),
    st.integers(1, 64),
)
def test_slices_contain_each_row_once_and_split_no_window(drawn: list[tuple[str, int, int]], cores: int) -> None:
    when = TimeRange(0, 100 * 60_000, 60)
    counts = [StepWeight("c", key, minute * 60_000, samples) for key, minute, samples in drawn]
    found = slices_of_time(counts, when, cores)
    for count in counts:
        holding = [
            s for s in found if s["quota_key"] == count.quota_key and s["from_ms"] <= count.start_ms < s["to_ms"]
        ]
        assert len(holding) == 1
    assert all(one["from_ms"] % 60_000 == 0 for one in found)


def test_slices_are_contiguous_and_extend_by_the_throttle_lookback() -> None:
    when = TimeRange(0, 3_600_000, 60)
    counts = [StepWeight("c", "k", minute * 60_000, 10) for minute in (1, 2, 20)]
    found = slices_of_time(counts, when, 1)
    assert found[0]["from_ms"] == 60_000
    assert [one["to_ms"] for one in found[:-1]] == [one["from_ms"] for one in found[1:]]
    assert found[-1]["to_ms"] == 20 * 60_000 + step_ms(when) + THROTTLE_LOOKBACK_MS


def test_rows_before_the_range_extend_slices_to_muted_windows() -> None:
    when = TimeRange(600_000, 3_600_000, 60)
    (one,) = slices_of_time([StepWeight("c", "k", 540_000, 10)], when, 1)
    assert (one["from_ms"], one["to_ms"]) == (600_000, 540_000 + step_ms(when) + THROTTLE_LOOKBACK_MS)
