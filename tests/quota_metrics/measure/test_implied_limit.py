"""What throttle times tell: the limit that a broker must have used, and how long a client was muted."""

import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import Exchange, UsageSample
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.measure.quota_in_force import QuotasInForce
from quota_metrics.measure.throttle_times import MutedTime
from quota_metrics.measure.usage_meter import FETCH, PRODUCE, UsageMeter
from quota_metrics.simulation.outcomes import Seen, Simulation
from quota_metrics.simulation.usage import ClientAtBroker
from quota_metrics.verdict.thresholds import UNEXPLAINED
from quota_metrics.windows import QuotaWindow, TokenBucket, throttle_time_ms
from tests.kit.recordings import columns

START_MS = 1_700_000_000_000
LIMITS = [50e3, 100e3, 1e6, 5e6, 50e6]
ROUND_TRIP_MS = 4


class SimulatedBroker:
    """One client of a broker that throttles at `limit`; its clock is ahead of the gateway's by some milliseconds."""

    def __init__(self, limit: float, window: QuotaWindow, api_key: int) -> None:
        self.limit = limit
        self.is_fetch = api_key == FETCH
        self.rate = window.rate()

    def throttle_ms(self, size: int, now_ms: int) -> int:
        self.rate.record(size, now_ms)
        rate = self.rate.measure(now_ms)
        if rate <= self.limit:
            return 0
        throttle_ms = throttle_time_ms(rate, self.limit, self.rate.elapsed_ms(now_ms))
        if self.is_fetch:
            self.rate.record(-size, now_ms)  # ClientQuotaManager.unrecordQuotaSensor
        return throttle_ms


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("api_key", [PRODUCE, FETCH])
@pytest.mark.parametrize("bursty", [False, True])
@pytest.mark.parametrize("window", [QuotaWindow(), QuotaWindow(31, 1000)])
def test_implied_limit_is_the_brokers(limit: float, api_key: int, bursty: bool, window: QuotaWindow) -> None:
    quotas = QuotasInForce()
    quotas.configure({entity_of({"user": "alice"}): {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9}})
    meter = UsageMeter("c", quota_of=quotas.of_client, window_at=lambda _: window)
    broker = SimulatedBroker(limit, window, api_key)
    random_ = random.Random(f"{limit}{api_key}{window}{bursty}")
    sizes = [int(limit * share) for share in ((1.5, 3.0, 6.0) if bursty else (0.02, 0.1, 0.3))]
    free_ms, asked_again, implied = START_MS, 0, []
    for now_ms in range(START_MS, START_MS + 150_000, 10):
        idle = bursty and (now_ms - START_MS) % 20_000 > 5_000
        if now_ms >= free_ms and (asked_again or not idle):
            size = asked_again or random_.choice(sizes)
            throttle_ms = broker.throttle_ms(size, now_ms - ROUND_TRIP_MS)
            request, response = (size, 50) if api_key == PRODUCE else (80, 50 if throttle_ms else size)
            meter.exchange(Exchange("alice", "app", "", 1, api_key, request, response, throttle_ms, now_ms))
            free_ms = now_ms + throttle_ms
            asked_again = size if throttle_ms and api_key == FETCH else 0  # a consumer asks for the same again
        if now_ms % 1000 == 0:
            implied += [row.implied_limit for row in meter.samples(now_ms) if row.implied_limit]
    assert len(implied) >= 2
    assert mean(implied) == pytest.approx(limit, rel=0.1)


def implied_in_bursts(window: QuotaWindow, limit: float, api_key: int) -> list[float]:
    """By a broker like Redpanda's (atomic_token_bucket): the bucket holds one second of the limit, the throttle time
    is what it lacks, and a throttled Fetch has its records. Each 30 s the client takes for 4 s what it gets."""
    meter, bucket = UsageMeter("c", window_at=lambda _: window), TokenBucket(1, 1000, limit)
    size, free_ms, implied = int(limit / 10), START_MS, []
    for now_ms in range(START_MS, START_MS + 90_000, 10):
        if now_ms >= free_ms and (now_ms - START_MS) % 30_000 < 4_000:
            bucket.record(size, now_ms)
            throttle_ms = round(max(-bucket.measure(now_ms) / limit * 1000, 0))
            request, response = (size, 50) if api_key == PRODUCE else (80, size)
            meter.exchange(Exchange("alice", "app", "", 1, api_key, request, response, throttle_ms, now_ms))
            free_ms = now_ms + throttle_ms
        if now_ms % 1000 == 0:
            implied += [row.implied_limit for row in meter.samples(now_ms) if row.implied_limit]
    return implied


@pytest.mark.parametrize("api_key", [PRODUCE, FETCH])
def test_no_estimate_by_a_broker_that_has_no_window(api_key: int) -> None:
    """The rule of windows would tell of another limit than the one that throttles."""
    assert mean(implied_in_bursts(QuotaWindow(), 1e6, api_key)) < UNEXPLAINED * 1e6
    assert implied_in_bursts(QuotaWindow(is_assumed=True), 1e6, api_key) == []


def test_no_estimate_before_the_window_was_seen_whole() -> None:
    """A client that came from another gateway has usage in the broker's window that this one has not seen."""
    meter = UsageMeter("c")
    meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1_000, 50, 9_000, START_MS))
    assert [row.implied_limit for row in meter.samples(START_MS + 1_000)] == [0.0]
    meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1_000_000, 50, 9_000, START_MS + 11_000))
    assert [row.implied_limit > 0 for row in meter.samples(START_MS + 12_000)] == [True]


def test_parts_of_other_gateways_count() -> None:
    """Two gateways see half each of what the broker's window holds."""
    meter = UsageMeter("c")
    meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 0, 50, 0, START_MS))
    for second in range(11, 60):
        now_ms = START_MS + second * 1_000
        meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 50_000, 50, 0, now_ms))
        meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 50_000, 50, 1, now_ms))
        (row,) = meter.samples(now_ms)
        undecided = meter.take_undecided()
        assert undecided == [("producer_byte_rate", "alice", "app", 1)]
        meter.others_have(dict.fromkeys(undecided, 100_000.0))
    assert row.implied_limit == pytest.approx(210_000, rel=0.05)


BUCKET = ("producer_byte_rate", "alice", "app", 1)


def throttled_after(meter: UsageMeter, admitted_ms: int, now_ms: int) -> float:
    """The estimate for a client that came at `admitted_ms` and is throttled at `now_ms`."""
    meter.exchange(Exchange("bob", "app", "", 1, PRODUCE, 1_000, 50, 0, START_MS))
    meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1_000, 50, 0, START_MS + admitted_ms))
    meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1_000_000, 50, 9_000, START_MS + now_ms))
    return next(row.implied_limit for row in meter.samples(START_MS + now_ms) if row.user == "alice")


def test_beside_other_gateways_a_client_is_estimated_a_window_after_it_came() -> None:
    for others, admitted_ms, is_estimated in ((False, 19_000, True), (True, 19_000, False), (True, 9_000, True)):
        meter = UsageMeter("c")
        if others:
            meter.others_have({BUCKET: 0.0})
        assert (throttled_after(meter, admitted_ms, 20_000) > 0) is is_estimated


def test_no_estimate_while_the_parts_of_others_are_unknown() -> None:
    meter = UsageMeter("c")
    meter.others_have({})
    assert throttled_after(meter, 0, 10_900) == 0.0
    assert meter.take_undecided() == [BUCKET]


def test_no_estimate_of_a_client_that_lost_its_place() -> None:
    """What it used before is in the broker's window and no longer in the meter's."""
    meter = UsageMeter("c", max_clients=3)
    for n in range(4):
        meter.exchange(Exchange("mallory", f"app-{n}", "", 1, PRODUCE, 1_000, 50, 0, START_MS))
    assert throttled_after(meter, 19_000, 20_000) == 0.0


def test_fetch_that_is_explained_leaves_nothing_to_decide() -> None:
    quotas = QuotasInForce()
    quotas.configure({entity_of({"user": "alice"}): {"consumer_byte_rate": 10_000.0}})
    meter = UsageMeter("c", quota_of=quotas.of_client)
    for now_ms, size, throttle_ms in ((0, 90_000, 0), (12_000, 90_000, 0), (13_000, 50, 5_000), (18_000, 60_000, 0)):
        meter.exchange(Exchange("alice", "app", "", 1, FETCH, 80, size, throttle_ms, START_MS + now_ms))
    (row,) = meter.samples(START_MS + 18_000)
    assert row.implied_limit == pytest.approx(10_000)
    assert meter.take_undecided() == []


def test_fetch_is_estimated_by_the_response_after_the_throttle_time() -> None:
    """Another connection of the client has smaller responses meanwhile."""
    meter = UsageMeter("c")
    for now_ms, size, throttle_ms in ((0, 1, 0), (12_000, 90_000, 0), (13_000, 50, 5_000), (15_000, 9, 0)):
        meter.exchange(Exchange("alice", "app", "", 1, FETCH, 80, size, throttle_ms, START_MS + now_ms))
    assert [row.implied_limit for row in meter.samples(START_MS + 15_000)] == [0.0]
    meter.exchange(Exchange("alice", "app", "", 1, FETCH, 80, 60_000, 0, START_MS + 18_000))
    assert [row.implied_limit for row in meter.samples(START_MS + 18_000)] == [pytest.approx(10_000, rel=0.01)]


BUSY = ("producer_byte_rate", "alice", "app")


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
    change = QuotaAlteration(entity_of({"user": "bob"}), {"producer_byte_rate": 1.0})
    asking = Simulation([], [change], [Seen(ClientAtBroker(*BUSY, 1), 1e6, 1000)], from_ms=0, to_ms=end_ms)
    asking.throttled(columns(all_rows))
    (outcome,) = asking.outcomes()
    assert muted_ms == len(milliseconds) == outcome.before.throttled_ms


def test_old_spans_are_dropped() -> None:
    muted = MutedTime(keep_ms=1000)
    for ts_ms in range(0, 100_000, 20):
        muted.announce(ts_ms, 10)
    assert len(muted._spans) <= 52
    assert muted.muted_ms(99_000, 100_000) == 500
