"""What counts as usage, for whom, and for how long it is remembered."""

from __future__ import annotations

from typing import Any

from exporters.model import UsageSample
from quota_metrics.measure.meter import UsageMeter

EXCHANGE: dict[str, Any] = {
    "principal": "alice",
    "client_id": "app",
    "address": "10.0.0.1",
    "broker_id": 1,
    "api_key": 0,
    "request_bytes": 1000,
    "response_bytes": 50,
    "throttle_ms": 0,
    "now_ms": 0,
}


def one(exchange: dict[str, Any], now_ms: int = 0) -> UsageSample:
    meter = UsageMeter("c")
    meter.exchange(**EXCHANGE | exchange)
    (row,) = meter.samples(now_ms)
    return row


def test_produce_is_charged_with_its_request() -> None:
    assert one({}) == UsageSample("c", "producer_byte_rate", 0, "alice", "app", "", 1, 1000, 100.0, 0, 0, "gateway")


def test_fetch_and_share_fetch_are_charged_with_their_response() -> None:
    for api_key in (1, 78):
        row = one({"api_key": api_key, "response_bytes": 5000})
        assert (row.quota_key, row.bytes, row.rate) == ("consumer_byte_rate", 5000, 500.0)


def test_a_throttled_fetch_is_empty_and_was_unrecorded() -> None:
    row = one({"api_key": 1, "response_bytes": 5000, "throttle_ms": 70})
    assert (row.bytes, row.rate, row.throttle_ms, row.throttled_requests) == (0, 0.0, 70, 1)


def test_a_throttled_produce_keeps_its_bytes() -> None:
    row = one({"throttle_ms": 70})
    assert (row.bytes, row.throttle_ms, row.throttled_requests) == (1000, 70, 1)


def test_throttling_of_other_requests_goes_to_the_quota_that_made_it() -> None:
    assert one({"api_key": 3, "throttle_ms": 9}).quota_key == "request_percentage"
    for api_key in (19, 20, 37):
        assert one({"api_key": api_key, "throttle_ms": 9}).quota_key == "controller_mutation_rate"


def test_other_requests_without_throttling_are_no_usage() -> None:
    meter = UsageMeter("c")
    meter.exchange(**EXCHANGE | {"api_key": 3})
    assert meter.samples(0) == []
    assert len(meter) == 0


def test_an_interval_keeps_the_longest_throttle_and_counts_the_throttled() -> None:
    meter = UsageMeter("c")
    for throttle_ms in (10, 300, 0, 20):
        meter.exchange(**EXCHANGE | {"throttle_ms": throttle_ms})
    (row,) = meter.samples(500)
    assert (row.bytes, row.throttle_ms, row.throttled_requests) == (4000, 300, 3)
    (row,) = meter.samples(1000)
    assert (row.bytes, row.throttle_ms, row.throttled_requests, row.rate) == (0, 0, 0, 400.0)


def test_brokers_and_clients_are_told_apart() -> None:
    meter = UsageMeter("c")
    for other in ({}, {"broker_id": 2}, {"principal": "bob"}, {"client_id": ""}, {"api_key": 1}):
        meter.exchange(**EXCHANGE | other)
    assert len(meter.samples(0)) == 5


def test_rows_go_on_until_the_rate_is_0_and_then_the_client_is_forgotten() -> None:
    meter = UsageMeter("c")
    meter.exchange(**EXCHANGE)
    rows = [len(meter.samples(second * 1000)) for second in range(12)]
    assert rows == [1] * 11 + [0]
    assert len(meter) == 0


def test_a_client_that_comes_back_measures_as_a_new_one() -> None:
    meter = UsageMeter("c")
    meter.exchange(**EXCHANGE)
    meter.samples(20_000)
    meter.exchange(**EXCHANGE | {"now_ms": 20_500})
    assert meter.samples(20_500) == [one({"now_ms": 20_500}, 20_500)]


def test_clients_beyond_the_cap_are_left_out_and_counted() -> None:
    meter = UsageMeter("c", max_clients=2)
    for n in range(5):
        meter.exchange(**EXCHANGE | {"client_id": f"app-{n}"})
    assert [row.client_id for row in meter.samples(0)] == ["app-0", "app-1"]
    assert meter.left_out == 3


def test_long_names_use_up_the_room_sooner_and_give_it_back() -> None:
    meter = UsageMeter("c", max_clients=100)
    for n in range(5):
        meter.exchange(**EXCHANGE | {"client_id": f"{n}" * 20_000})
    assert (len(meter), meter.left_out) == (1, 4)
    meter.samples(11_000)
    meter.exchange(**EXCHANGE | {"client_id": "9" * 20_000, "now_ms": 22_000})
    assert len(meter) == 1
