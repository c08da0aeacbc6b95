"""The numbers by which a client paces itself, beside Kafka's formula written down anew."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.model import QuotaKey
from quota_metrics.verdict.pacing import MAX_WAIT_MS, BucketMinute, PacingAdvice, pace

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
_rates = st.floats(0, 1e12)


@given(limit=_rates, usage=_rates, window_ms=st.integers(1000, 3_600_000))
def test_unmuted_client_waits_as_long_as_kafka_would_delay_it(limit: float, usage: float, window_ms: int) -> None:
    advice = pace(BucketMinute(PRODUCE, limit, usage, 0.0, 0.0), window_ms)
    over = usage > limit
    wait_ms = min(window_ms * (usage - limit) / limit if limit else math.inf, MAX_WAIT_MS) if over else 0
    assert advice.retry_after_ms == pytest.approx(wait_ms, abs=1)
    assert advice.headroom_bytes_per_s == (0.0 if over else limit - usage)


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        (BucketMinute(PRODUCE, 100.0, 90.0, 1_500.4, 20.0), PacingAdvice(1_500, 10.0)),  # what the broker announced
        (BucketMinute(PRODUCE, 100.0, 300.0, 1e9, 20.0), PacingAdvice(MAX_WAIT_MS, 0.0)),
        (BucketMinute(PRODUCE, 100.0, 0.0, 0.0, 60_000.0), PacingAdvice(MAX_WAIT_MS, 100.0)),  # announced earlier
        (BucketMinute(PRODUCE, 100.0, 120.0, 0.0, 20_000.0), PacingAdvice(2_200, 0.0)),  # over since 40 s
        (BucketMinute(PRODUCE, None, 90.0, 0.0, 0.0), PacingAdvice(0, None)),
        (BucketMinute(QuotaKey.REQUEST_PERCENTAGE, 200.0, 220.0, 0.0, 0.0), PacingAdvice(1_100, None)),
        (BucketMinute(PRODUCE, 0.0, 0.0, 0.0, 0.0), PacingAdvice(0, 0.0)),
    ],
)
def test_examples(minute: BucketMinute, expected: PacingAdvice) -> None:
    assert pace(minute) == expected
