"""Numbers in reasons, and those by which a client paces itself, beside Kafka's formula written down anew."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import QuotaKey
from quota_metrics.verdict.number_words import amount, clock, duration, percent, rounded, tenths
from quota_metrics.verdict.pacing import MAX_WAIT_MS, BucketMinute, PacingAdvice, pace

PRODUCE = "producer_byte_rate"


@pytest.mark.parametrize(
    ("number", "whole", "tenth"),
    [
        (0.0, "0", "0.0"),
        (0.5, "1", "0.5"),
        (2.5, "3", "2.5"),
        (0.25, "0", "0.3"),
        (12.449, "12", "12.4"),
        (1e15, "1000000000000000", "100000000000000.0"),
        (1e300, "1000000000000000", "100000000000000.0"),
        (math.inf, "1000000000000000", "100000000000000.0"),
        (math.nan, "1000000000000000", "100000000000000.0"),
    ],
)
def test_numbers_are_rounded_half_up(number: float, whole: str, tenth: str) -> None:
    assert (rounded(number), tenths(number)) == (whole, tenth)


@pytest.mark.parametrize(
    ("rate", "quota_key", "text"),
    [
        (0.0, PRODUCE, "0 B/s"),
        (999.94, PRODUCE, "1000 B/s"),
        (999.95, PRODUCE, "1.0 kB/s"),
        (84_950.0, "consumer_byte_rate", "85.0 kB/s"),
        (999_949.0, PRODUCE, "999.9 kB/s"),
        (999_950.0, PRODUCE, "1.0 MB/s"),
        (999.95e6, PRODUCE, "1.0 GB/s"),
        (1.2e13, PRODUCE, "12.0 TB/s"),
        (1e15, PRODUCE, "1.0 PB/s"),
        (5e18, PRODUCE, "5000.0 PB/s"),
        (math.inf, PRODUCE, "100000000000000.0 PB/s"),
        (1234.56, "request_percentage", "1234.6 %"),
        (3.0, "controller_mutation_rate", "3.0 mutations/s"),
        (3.0, "connection_creation_rate", "3.0 connections/s"),
        (3000.0, "a_quota_of_later", "3.0 kB/s"),
    ],
)
def test_amount_has_the_unit_of_its_quota(rate: float, quota_key: str, text: str) -> None:
    assert amount(rate, quota_key) == text


def test_shares_and_times() -> None:
    assert [percent(share) for share in (0.0, 0.849, 1.2, 0.9995)] == ["0.0 %", "84.9 %", "120.0 %", "100.0 %"]
    assert [duration(ms) for ms in (0.4, 905.0, 999.4, 999.5, 9_800.0)] == [
        "0 ms",
        "905 ms",
        "999 ms",
        "1.0 s",
        "9.8 s",
    ]
    assert [clock(at) for at in (0, 36_240_000, 1_795_515_120_000)] == ["00:00 UTC", "10:04 UTC", "10:12 UTC"]


KEY = QuotaKey.PRODUCER_BYTE_RATE
_rates = st.floats(0, 1e12)


@given(limit=_rates, usage=_rates, window_ms=st.integers(1000, 3_600_000))
def test_unmuted_client_waits_as_long_as_kafka_would_delay_it(limit: float, usage: float, window_ms: int) -> None:
    advice = pace(BucketMinute(KEY, limit, usage, 0.0, 0.0), window_ms)
    over = usage > limit
    wait_ms = min(window_ms * (usage - limit) / limit if limit else math.inf, MAX_WAIT_MS) if over else 0
    assert advice.retry_after_ms == pytest.approx(wait_ms, abs=1)
    assert advice.headroom_bytes_per_s == (0.0 if over else limit - usage)


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        (BucketMinute(KEY, 100.0, 90.0, 1_500.4, 20.0), PacingAdvice(1_500, 10.0)),  # what the broker announced
        (BucketMinute(KEY, 100.0, 300.0, 1e9, 20.0), PacingAdvice(MAX_WAIT_MS, 0.0)),
        (BucketMinute(KEY, 100.0, 0.0, 0.0, 60_000.0), PacingAdvice(MAX_WAIT_MS, 100.0)),  # announced earlier
        (BucketMinute(KEY, 100.0, 120.0, 0.0, 20_000.0), PacingAdvice(2_200, 0.0)),  # over since 40 s
        (BucketMinute(KEY, None, 90.0, 0.0, 0.0), PacingAdvice(0, None)),
        (BucketMinute(QuotaKey.REQUEST_PERCENTAGE, 200.0, 220.0, 0.0, 0.0), PacingAdvice(1_100, None)),
        (BucketMinute(KEY, 0.0, 0.0, 0.0, 0.0), PacingAdvice(0, 0.0)),
    ],
)
def test_examples_of_pacing(minute: BucketMinute, expected: PacingAdvice) -> None:
    assert pace(minute, 11_000) == expected
