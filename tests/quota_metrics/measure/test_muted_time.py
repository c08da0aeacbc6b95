"""Muted time: rows and what-if agree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import Exchange, UsageSample
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.measure.muted_time import MutedTime
from quota_metrics.measure.usage_meter import UsageMeter
from quota_metrics.simulation.outcomes import Seen, Simulation
from quota_metrics.simulation.usage import ClientAtBroker
from tests.kit.recordings import columns

BUSY = ("producer_byte_rate", "alice", "app")


def what_if_ms(rows: list[UsageSample], end_ms: int) -> float:
    client = ClientAtBroker(*BUSY, 1)
    change = QuotaAlteration(entity_of({"user": "bob"}), {"producer_byte_rate": 1.0})
    asking = Simulation([], [change], [Seen(client, 1e6, 1000)], from_ms=0, to_ms=end_ms)
    asking.throttled(columns(rows))
    (outcome,) = asking.outcomes()
    return outcome.before.throttled_ms


def throttled(meter: UsageMeter, now_ms: int, throttle_ms: int) -> None:
    meter.exchange(Exchange("alice", "app", "", 1, 0, 1000, 50, throttle_ms, now_ms))


def test_muted_client_has_rows_until_unmuted() -> None:
    meter = UsageMeter("c")
    throttled(meter, 0, 30_000)
    rows = [meter.samples(second * 1000) for second in range(40)]
    assert [len(rows_of_call) for rows_of_call in rows] == [1] * 31 + [0] * 9
    assert [row.throttle_ms for (row,) in rows[:31]] == [30_000] + [0] * 30
    assert [row.muted_ms for (row,) in rows[:31]] == [0] + [1000] * 30
    throttled(meter, 39_000, 2**31 - 1)
    assert meter.samples(638_000)
    assert meter.samples(639_000)
    assert not meter.samples(640_000)
    assert len(meter) == 0


def test_mute_ending_in_an_idle_interval_has_a_row() -> None:
    meter = UsageMeter("c")
    throttled(meter, 20_000, 90_500)  # longer than the window: its rate has become 0
    muted = {now_ms: sum(row.muted_ms for row in meter.samples(now_ms)) for now_ms in range(20_000, 115_000, 1000)}
    assert muted[110_000] == 1000
    assert muted[111_000] == 500
    assert sum(muted.values()) == 90_500


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 6_000), st.integers(0, 300)), max_size=40),
    st.lists(st.integers(300, 3_000), min_size=1, max_size=30),
)
def test_muted_time_is_the_union_of_throttles_in_all_intervals(
    announced: list[tuple[int, int, int]], intervals: list[int]
) -> None:
    """In rows and in what-if, against a naive set of milliseconds. Exchanges of other network processes come up to an
    interval late: what they add to an interval that has its row is in the rows after it."""
    meter = UsageMeter("c")
    coming = sorted((at_ms + late_ms, at_ms, throttle_ms) for at_ms, throttle_ms, late_ms in announced)
    milliseconds: set[int] = set()
    start_ms, muted_ms = 0, 0
    all_rows: list[UsageSample] = []
    meter.samples(start_ms)
    for interval_ms in [*intervals, *[3_000] * 40]:
        end_ms = start_ms + interval_ms
        while coming and coming[0][0] < end_ms:
            _, at_ms, throttle_ms = coming.pop(0)
            throttled(meter, at_ms, throttle_ms)
            milliseconds.update(range(at_ms, at_ms + throttle_ms))
        rows = meter.samples(end_ms)
        all_rows += rows
        assert all(row.muted_ms <= interval_ms for row in rows)
        muted_ms += sum(row.muted_ms for row in rows)
        assert muted_ms <= len(milliseconds & set(range(end_ms)))
        start_ms = end_ms
    assert not coming
    assert muted_ms == len(milliseconds) == what_if_ms(all_rows, end_ms)


def test_old_spans_are_dropped() -> None:
    muted = MutedTime(keep_ms=1000)
    for ts_ms in range(0, 100_000, 20):
        muted.announce(ts_ms, 10)
    assert len(muted._spans) <= 52
    assert muted.muted_ms(99_000, 100_000) == 500
