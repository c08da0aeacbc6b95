"""What counts as usage, for which client, and how long the meter keeps it."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exporters.identity import stored_name
from exporters.model import CONTROLLER, Exchange, UsageSample
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.measure.places_by_payer import PayerCount
from quota_metrics.measure.quota_in_force import QuotasInForce
from quota_metrics.measure.usage_meter import UsageMeter
from quota_metrics.windows import QuotaWindow

EXCHANGE = Exchange("alice", "app", "10.0.0.1", 1, 0, request_bytes=1000, response_bytes=50, throttle_ms=0, now_ms=0)


def exchanged(meter: UsageMeter, **fields: Any) -> None:
    meter.exchange(EXCHANGE._replace(**fields))


def metered(**fields: Any) -> UsageSample:
    meter = UsageMeter("c")
    exchanged(meter, **fields)
    (row,) = meter.samples(0)
    return row


def test_produce_is_charged_by_request_size() -> None:
    bucket: dict[str, Any] = {"bucket_user": "alice", "bucket_client_id": "app"}
    row = UsageSample("c", "producer_byte_rate", 0, "alice", "app", "", 1, 1000, 100.0, 0, 0, "gateway", **bucket)
    assert metered() == row._replace(interval_ms=1000, requests=1)


def test_fetch_and_share_fetch_are_charged_by_response_size() -> None:
    for api_key in (1, 78):
        row = metered(api_key=api_key, response_bytes=5000)
        assert (row.quota_key, row.bytes, row.rate) == ("consumer_byte_rate", 5000, 500.0)


def test_throttled_produce_is_charged_and_a_throttled_fetch_if_it_carries_records() -> None:
    for api_key, response_bytes, size in ((0, 5000, 1000), (1, 17, 0), (1, 5000, 5000)):
        row = metered(api_key=api_key, response_bytes=response_bytes, throttle_ms=70)
        expected = (size, size / 10, 70, 1, 1)
        assert (row.bytes, row.rate, row.throttle_ms, row.throttled_requests, row.requests) == expected


def test_throttling_of_other_requests_is_charged_to_its_quota() -> None:
    assert metered(api_key=3, throttle_ms=9).quota_key == "request_percentage"
    for api_key in (19, 20, 37):
        assert metered(api_key=api_key, throttle_ms=9).quota_key == "controller_mutation_rate"
    meter = in_force({entity_of({"user": "alice"}): {"request_percentage": 1.0}})
    changed(meter, throttle_ms=9)
    assert {row.quota_key: row.broker_id for row in meter.samples(1000)} == {"request_percentage": 1}


def changed(meter: UsageMeter, *changes: tuple[str, int, int], validate_only: bool = False, **fields: Any) -> None:
    exchanged(meter, **{"api_key": 19, "changes": tuple((*change, validate_only) for change in changes)} | fields)


def test_mutations_are_partitions_at_the_controller_whichever_broker_forwards_them() -> None:
    meter = in_force({entity_of({"user": "alice"}): {"controller_mutation_rate": 5.0}})
    changed(meter, ("a", 20, 20), ("b", 3, 3))
    changed(meter, ("a", 24, -1), broker_id=2, api_key=37)
    changed(meter, ("b", 0, -1), broker_id=3, api_key=20)
    (row,) = meter.samples(1000)
    assert (row.quota_key, row.broker_id, row.limit) == ("controller_mutation_rate", CONTROLLER, 5.0)
    assert (row.rate, row.bytes, row.throttle_ms) == (3.0, 0, 0)
    assert meter.topics.unknown == 0


def test_mutations_of_unknown_topics_are_counted_as_unknown() -> None:
    meter = UsageMeter("c")
    meter.topics.follow({"known": 6})
    changed(meter, ("known", 0, -1), ("known", 0, -1), ("other", 9, -1), ("", -1, -1), ("default", -1, -1))
    (row,) = meter.samples(0)
    assert (row.rate, meter.topics.unknown) == (0.6, 4)
    changed(meter, ("other", 0, -1), now_ms=500)  # its size is known since
    (row,) = meter.samples(500)
    assert (round(row.rate * 10.5), meter.topics.unknown) == (15, 4)


def test_changes_that_are_only_validated_cost_as_much_and_are_not_made() -> None:
    meter = UsageMeter("c")
    meter.topics.follow({"orders": 6})
    for validate_only in (True, True, False):
        changed(meter, ("orders", 12, -1), api_key=37, validate_only=validate_only)
    changed(meter, ("orders", 0, -1), api_key=20)
    (row,) = meter.samples(0)
    assert (row.rate, meter.topics.unknown) == ((6 + 6 + 6 + 12) / 10, 0)


def test_throttled_mutations_are_counted_and_muted() -> None:
    meter = UsageMeter("c")
    changed(meter, ("a", 50, 50), throttle_ms=800)
    (row,) = meter.samples(1000)
    assert (row.rate, row.throttle_ms, row.muted_ms) == (5.0, 800, 800)


def test_mutations_are_measured_over_the_controllers_window() -> None:
    meter = UsageMeter("c", window_at=lambda broker_id: QuotaWindow(3 if broker_id == CONTROLLER else 11, 1000))
    changed(meter, ("a", 50, 50))
    (row,) = meter.samples(0)
    assert row.rate == 25.0


def test_unthrottled_other_requests_are_not_metered() -> None:
    meter = UsageMeter("c")
    exchanged(meter, api_key=3)
    assert meter.samples(0) == []
    assert len(meter) == 0


def test_interval_keeps_longest_throttle_and_counts_throttled_requests() -> None:
    meter = UsageMeter("c")
    for throttle_ms in (10, 300, 0, 20):
        exchanged(meter, throttle_ms=throttle_ms)
    (row,) = meter.samples(500)
    assert (row.bytes, row.throttle_ms, row.throttled_requests, row.requests) == (4000, 300, 3, 4)
    (row,) = meter.samples(1000)
    assert (row.bytes, row.throttle_ms, row.throttled_requests, row.requests, row.rate) == (0, 0, 0, 0, 400.0)


def test_brokers_and_clients_are_metered_separately() -> None:
    meter = UsageMeter("c")
    for other in ({}, {"broker_id": 2}, {"principal": "bob"}, {"client_id": ""}, {"api_key": 1}):
        exchanged(meter, **other)
    assert len(meter.samples(0)) == 5


def test_rows_continue_until_the_rate_is_zero() -> None:
    meter = UsageMeter("c")
    exchanged(meter)
    rows = [len(meter.samples(second * 1000)) for second in range(12)]
    assert rows == [1] * 11 + [0]
    assert len(meter) == 0


def test_row_interval_is_the_time_since_the_previous_call() -> None:
    meter = UsageMeter("c", gateway_id="gw-1", interval_ms=500)
    intervals = []
    for now_ms in (10_000, 10_400, 11_900, 40_000):
        exchanged(meter, now_ms=now_ms)
        (row,) = meter.samples(now_ms)
        intervals.append(row.interval_ms)
        assert row.gateway_id == "gw-1"
    assert intervals == [500, 400, 1500, 11_000]  # not longer than the window


@pytest.mark.parametrize("set_back_ms", [5_000, 3_600_000])
def test_a_clock_that_was_set_back_raises_no_rate(set_back_ms: int) -> None:
    meter = UsageMeter("c")
    for second in range(20, 140):
        now_ms = second * 1000 - (set_back_ms if second >= 60 else 0)
        exchanged(meter, now_ms=now_ms, throttle_ms=900)
        rows = meter.samples(now_ms)
        assert all(row.rate <= 1100 and row.muted_ms <= 900 for row in rows)
        assert len(rows) == (0 if second == 60 else 1)
    assert rows[0].rate > 990


def test_broker_with_another_window_begins_anew() -> None:
    """quota.window.num is read at a broker's start: it was restarted, and has no samples."""
    windows = {1: QuotaWindow(), 2: QuotaWindow()}
    meter = UsageMeter("c", window_at=windows.__getitem__)
    for broker_id in windows:
        exchanged(meter, broker_id=broker_id)
    windows[2] = QuotaWindow(31, 1000)
    assert [row.rate for row in meter.samples(0)] == [100.0, 0.0]
    exchanged(meter, broker_id=2, request_bytes=3000)
    assert [row.rate for row in meter.samples(0)] == [100.0, 100.0]


def throttled(meter: UsageMeter, now_ms: int, throttle_ms: int) -> None:
    exchanged(meter, throttle_ms=throttle_ms, now_ms=now_ms)


def in_force(rules: Rules, window: QuotaWindow = QuotaWindow()) -> UsageMeter:
    quotas = QuotasInForce()
    quotas.configure(rules)
    return UsageMeter("c", quota_of=quotas.of_client, window_at=lambda _: window)


def test_rows_contain_limit_and_quota_group() -> None:
    meter = in_force({entity_of({"user": "a b", "client-id": None}): {"producer_byte_rate": 500.0}})
    exchanged(meter, principal="a b")
    exchanged(meter, principal="bob")
    limited, free = meter.samples(0)
    names = ("limit", "limit_known", "matched_entity", "bucket_user", "bucket_client_id")
    in_rows = [tuple(getattr(row, name) for name in names) for row in (limited, free)]
    assert in_rows[0] == (500.0, True, "user=a b, client-id=<default>", "a b", "app")
    assert in_rows[1] == (None, True, "", "bob", "app")


BYTES_AND_REQUESTS = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0, "request_percentage": 10.0}


def booked(meter: UsageMeter, now_ms: int = 0) -> dict[str, float]:
    return {row.quota_key: row.throttle_ms for row in meter.samples(now_ms) if row.throttle_ms}


ALICE, BOB = entity_of({"user": "alice"}), entity_of({"user": "bob"})


@pytest.mark.parametrize(
    ("rules", "size", "throttle_ms", "quota_key"),
    [
        ({ALICE: BYTES_AND_REQUESTS}, 8_000, 70, "request_percentage"),  # 800 of 1000 bytes/s
        ({ALICE: BYTES_AND_REQUESTS}, 9_500, 80, "producer_byte_rate"),
        # The request quota's is capped at one window (QuotaUtils.boundedThrottleTime).
        ({ALICE: BYTES_AND_REQUESTS}, 1_000, 1000, "request_percentage"),
        ({ALICE: BYTES_AND_REQUESTS}, 1_000, 1001, "producer_byte_rate"),
        ({ALICE: {"producer_byte_rate": 1e9}}, 1_000, 70, "producer_byte_rate"),  # no request quota that caused it
        ({BOB: BYTES_AND_REQUESTS}, 1_000, 70, "producer_byte_rate"),
        ({ALICE: {"request_percentage": 10.0}}, 1_000, 70, "request_percentage"),  # no byte quota
    ],
)
def test_throttle_is_charged_to_the_quota_that_can_have_caused_it(
    rules: Rules, size: int, throttle_ms: int, quota_key: str
) -> None:
    meter = in_force(rules)
    exchanged(meter, request_bytes=size, throttle_ms=throttle_ms)
    assert booked(meter) == {quota_key: throttle_ms}


def test_other_clients_of_the_group_count_towards_the_byte_rate() -> None:
    meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
    exchanged(meter, client_id="other", request_bytes=12_000)
    exchanged(meter)
    meter.samples(0)
    exchanged(meter, throttle_ms=70, now_ms=10)
    assert booked(meter, 10) == {"producer_byte_rate": 70}


def test_fetch_is_estimated_by_the_largest_previous_one() -> None:
    for largest, samples in ((2_000, 11), (9_500, 11), (0, 11), (2_000, 1)):  # of one sample, within a millisecond
        quota_key = "request_percentage" if (largest, samples) == (2_000, 11) else "consumer_byte_rate"
        meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS}, QuotaWindow(samples))
        if largest:
            exchanged(meter, api_key=1, response_bytes=largest)
        exchanged(meter, api_key=1, throttle_ms=70, now_ms=12_000)
        assert booked(meter, 12_000) == {quota_key: 70}


BUCKET = ("producer_byte_rate", "alice", "", 1)


def test_rates_of_other_gateways_decide_which_quota_throttled() -> None:
    """Half of 1000 bytes/s at each of two gateways exceeds the limit, a tenth at the other does not."""
    for others, quota_key in ((600.0, "producer_byte_rate"), (100.0, "request_percentage")):
        meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
        meter.others_have({})
        exchanged(meter, request_bytes=5_000, throttle_ms=70)
        assert booked(meter) == {"producer_byte_rate": 70}  # not known yet
        assert meter.take_undecided() == [BUCKET]
        meter.others_have({BUCKET: others})
        meter.samples(11_000)
        exchanged(meter, request_bytes=5_000, throttle_ms=70, now_ms=22_000)
        assert booked(meter, 22_000) == {quota_key: 70}
        assert meter.take_undecided() == [BUCKET]  # asked again, since it changes


def test_a_gateway_that_is_alone_decides_itself() -> None:
    meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
    meter.others_have({BUCKET: 1e9})
    meter.is_alone()
    exchanged(meter, throttle_ms=70)
    assert (booked(meter), meter.take_undecided()) == ({"request_percentage": 70}, [BUCKET])


def test_undecided_buckets_are_bounded() -> None:
    meter = in_force({entity_of({"client-id": None}): BYTES_AND_REQUESTS})
    meter.others_have({})
    for n in range(1_500):
        exchanged(meter, client_id=f"app-{n}", throttle_ms=70)
    assert len(meter.take_undecided()) == 1_000


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 3000), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 3_000),
)
def test_quota_of_a_throttle_is_that_of_the_summed_rates(parts: list[float], own: int, throttle_ms: int) -> None:
    """Whatever the gateway's part is: as one gateway with the whole rate would decide."""

    def decided(rate: float, others: float | None) -> dict[str, float]:
        meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
        if others is not None:
            meter.others_have({BUCKET: others})
        exchanged(meter, request_bytes=round(rate * 10), throttle_ms=throttle_ms)
        return booked(meter)

    rates = [round(part * 10) / 10 for part in parts]
    mine = rates.pop(own % len(rates))
    whole = mine + sum(rates)
    assume(abs(whole - 900) > 1)
    assert decided(mine, sum(rates)) == decided(whole, None)


def test_quota_named_for_a_throttle_stays_named_for_a_window() -> None:
    """The rate of another gateway came late, or responses never came."""
    meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
    meter.others_have({BUCKET: 500.0})
    exchanged(meter, request_bytes=4_500, throttle_ms=70)
    meter.others_have({BUCKET: 0.0})
    throttled(meter, 10_000, 70)
    assert booked(meter) == {"producer_byte_rate": 70}
    throttled(meter, 11_000, 70)
    assert booked(meter) == {"request_percentage": 70}


def test_quota_that_was_changed_is_not_named_for_what_the_one_before_did() -> None:
    quotas = QuotasInForce()
    quotas.configure({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
    meter = UsageMeter("c", quota_of=quotas.of_client)
    exchanged(meter, request_bytes=9_500, throttle_ms=70)
    assert booked(meter) == {"producer_byte_rate": 70}
    quotas.configure({entity_of({"user": "alice"}): {**BYTES_AND_REQUESTS, "producer_byte_rate": 4_000.0}})
    throttled(meter, 1_000, 70)
    assert booked(meter, 1_000) == {"request_percentage": 70}


def test_quota_that_stays_named_implies_no_limit() -> None:
    meter = in_force({entity_of({"user": "alice"}): BYTES_AND_REQUESTS})
    exchanged(meter, now_ms=-60_000)
    for now_ms in (0, 10_990, 11_500):  # a second after the burst left the window
        exchanged(meter, request_bytes=0 if now_ms else 12_000, throttle_ms=70, now_ms=now_ms)
        implied = {row.quota_key: row.implied_limit for row in meter.samples(now_ms)}
    assert implied == {"producer_byte_rate": 0.0}


def test_throttle_with_unknown_quotas_is_charged_to_the_byte_quota() -> None:
    meter = UsageMeter("c", quota_of=QuotasInForce().of_client)
    exchanged(meter, throttle_ms=70)
    (row,) = meter.samples(0)
    assert (row.throttle_ms, row.limit, row.limit_known) == (70, None, False)


def test_clients_beyond_the_limit_are_skipped_and_counted() -> None:
    meter = UsageMeter("c", max_clients=2)
    for n in range(5):
        exchanged(meter, client_id=f"app-{n}")
    assert [row.client_id for row in meter.samples(0)] == ["app-0", "app-1"]
    assert meter.left_out.total == 3


def test_payers_of_names_that_were_shortened_are_counted() -> None:
    """A row of usage each; others are not counted, nor a client that is forgotten."""
    meter = UsageMeter("c")
    for client_id in (stored_name("x" * 256), "y" * 255):
        for broker_id in (1, 2):
            exchanged(meter, client_id=client_id, broker_id=broker_id)
    meter.samples(0)
    assert meter.long_names.recent(0) == [PayerCount("alice", 2, 0)]
    meter.samples(60_000)
    meter.samples(61_000)
    assert (len(meter), meter.long_names.total) == (0, 2)


def test_long_names_consume_capacity_until_forgotten() -> None:
    meter = UsageMeter("c", max_clients=100)
    for n in range(5):
        exchanged(meter, client_id=f"{n}" * 20_000)
    assert (len(meter), meter.left_out.total) == (1, 4)
    meter.samples(11_000)
    exchanged(meter, client_id="9" * 20_000, now_ms=22_000)
    assert len(meter) == 1
