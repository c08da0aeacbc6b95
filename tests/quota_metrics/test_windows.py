"""Kafka's windows against vectors computed by Kafka's own classes."""

import math

from quota_metrics.windows import LONG_MAX, LONG_MIN, Rate, TokenBucket, throttle_time_ms


def test_throttle_times_round_half_up_as_in_java() -> None:
    assert throttle_time_ms(3, 2, 1) == 1
    assert throttle_time_ms(1, 2, 1) == 0
    assert throttle_time_ms(0.49999999999999994, 1, -1) == 1
    assert throttle_time_ms(1, 0, 1000) == LONG_MAX
    assert throttle_time_ms(-1, 0, 1000) == LONG_MIN
    assert throttle_time_ms(0, 0, 1000) == 0
    assert throttle_time_ms(math.nan, 1, 1000) == 0
    assert throttle_time_ms(math.inf, 1, 1000) == LONG_MAX


def test_before_3_8_samples_expire_by_their_start() -> None:
    old, new = Rate(2, 1000, before_3_8=True), Rate(2, 1000)
    for rate in (old, new):
        rate.record(10, 0)
        rate.record(10, 900)
    assert old.measure(2000) == 0.0
    assert new.measure(2000) == 10.0


def test_before_3_8_there_is_no_extra_sample() -> None:
    old = Rate(2, 1000, before_3_8=True)
    for second in range(3):
        old.record(10, second * 1000)
    assert old.measure(2000) == 20.0


def test_token_bucket_matches_the_class_documentation() -> None:
    bucket = TokenBucket(10, 2000, 5.0)
    left = [bucket.measure(100_000)]
    for value, now_ms in ((60, 100_000), (0, 102_000), (5, 102_000), (0, 104_000), (60, 104_000)):
        bucket.record(value, now_ms)
        left.append(bucket.measure(now_ms))
    assert left == [100.0, 40.0, 50.0, 45.0, 55.0, -5.0]
