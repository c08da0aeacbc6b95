"""The numbers, the level, its memory and the words of the reason."""

import math
from typing import Any

import pytest

from quota_metrics.verdict.level_and_reason import (
    held,
    is_near,
    is_worth_a_row,
    level_of,
    nearness,
    reached,
    reason_of,
    was_calm,
    worst_first,
)
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import PastWindow, Window
from tests.kit.client_windows import LIMIT, MINUTE_MS, client_window

THRESHOLDS = Thresholds()
RULE = "producer_byte_rate 200.0 kB/s of client-id=orders"
NO_LIMIT: dict[str, Any] = {"state": "none", "limit": None, "rule_limit": None}
UNKNOWN: dict[str, Any] = {"state": "unknown", "limit": None, "rule_limit": None}
ALLOWS_NONE: dict[str, Any] = {"limit": 0.0, "rule_limit": 0.0}
REQUESTS = "request_percentage"


@pytest.mark.parametrize(
    ("window", "mean", "p95", "value"),
    [
        (client_window(0.5, 0.75), 0.5, 0.75, 0.75),
        (client_window(0.5, group_p95=0.0), 0.5, 0.0, 0.5),  # a mean above its p95: one high second
        (client_window(0.5, **NO_LIMIT), None, None, None),
        (client_window(0.5, **ALLOWS_NONE), math.inf, math.inf, math.inf),
        (client_window(0.5, group_p95=0.0, **ALLOWS_NONE), math.inf, None, math.inf),
        (client_window(0.0, **ALLOWS_NONE), None, None, None),
        (client_window(0.0), 0.0, 0.0, 0.0),
        # Of other quotas a rate of 0 beside throttling is none that is measured.
        (client_window(0.0, quota_key=REQUESTS, throttle_ms=5.0), None, None, None),
        (client_window(0.0, quota_key=REQUESTS, muted_ms=5.0), None, None, None),
        (client_window(0.0, quota_key=REQUESTS), 0.0, 0.0, 0.0),
        (client_window(0.0, throttle_ms=5.0), 0.0, 0.0, 0.0),
    ],
)
def test_shares_of_the_limit(window: Window, mean: float | None, p95: float | None, value: float | None) -> None:
    numbers = nearness(window, THRESHOLDS)
    assert (numbers.utilization, numbers.utilization_p95, numbers.value) == (mean, p95, value)


@pytest.mark.parametrize(
    ("window", "level"),
    [
        (client_window(0.59), "ok"),
        (client_window(0.5, 0.6), "watch"),
        (client_window(0.8), "warn"),
        (client_window(0.95), "critical"),
        (client_window(0.5, **ALLOWS_NONE), "critical"),
        (client_window(0.0, **NO_LIMIT), "ok"),
        (client_window(0.0, **UNKNOWN), "unknown"),
        (client_window(0.0, muted_ms=599.0), "critical"),
        (client_window(0.0, muted_ms=600.0), "throttled"),
        (client_window(0.0, muted_ms=599.0, elapsed_s=59), "throttled"),
        (client_window(0.0, muted_ms=1.0, **UNKNOWN), "critical"),
    ],
)
def test_level_of_a_window(window: Window, level: str) -> None:
    numbers = nearness(window, THRESHOLDS)
    assert level_of(numbers, reached(numbers.value or 0.0, THRESHOLDS.steps)) == level


def test_thresholds_are_settings() -> None:
    strict = Thresholds(0.1, 0.2, 0.3, muted_share=0.5)
    assert level_of(nearness(client_window(muted_ms=29_999.0), strict), 0) == "critical"
    assert reached(0.25, strict.steps) == 2


def test_which_quotas_are_worth_a_row() -> None:
    assert is_worth_a_row(client_window(**NO_LIMIT))
    assert not is_worth_a_row(client_window(quota_key=REQUESTS, **NO_LIMIT))
    assert is_worth_a_row(client_window(quota_key=REQUESTS, muted_ms=1.0, **NO_LIMIT))
    assert is_worth_a_row(client_window(quota_key=REQUESTS))


def test_the_worst_broker_is_where_it_is_throttled_then_nearest_then_muted_longest() -> None:
    brokers = [
        client_window(0.1, broker_id=1, muted_ms=700.0),
        client_window(0.9, broker_id=2),
        client_window(0.2, broker_id=3, muted_ms=500.0),
        client_window(0.2, broker_id=4),
        client_window(0.2, broker_id=5),
        client_window(0.2, broker_id=6, **NO_LIMIT),
    ]
    ordered = sorted((nearness(window, THRESHOLDS) for window in reversed(brokers)), key=worst_first)
    assert [numbers.window.broker_id for numbers in ordered] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("values", "missing", "now", "holding"),
    [
        ((), 0, 0.85, 2),
        ((0.85,), 0, 0.7, 2),  # one window below 0.75 does not end it
        ((0.85, 0.7), 0, 0.7, 1),
        ((0.85, 0.7, 0.76), 0, 0.7, 2),  # not two in a row
        ((0.85, 0.76, 0.76, 0.76), 0, 0.76, 2),  # below the threshold by less than the margin
        ((0.85,), 1, 0.7, 1),  # a missing window counts as 0
        ((0.85,), 1, 0.76, 2),
        ((0.85,), 2, 0.76, 1),
        ((0.85, *[0.76] * 9), 0, 0.76, 2),
        ((0.85, *[0.76] * 10), 0, 0.76, 1),  # older than ten windows
        ((0.99, 0.7), 0, 0.7, 1),
        ((0.99, 0.85, 0.85), 0, 0.85, 2),
        ((math.inf,), 0, 0.0, 3),
    ],
)
def test_a_threshold_holds_until_two_windows_are_below_it(
    values: tuple[float, ...], missing: int, now: float, holding: int
) -> None:
    past = [  # the last `missing` windows before the one that begins at 0 are not there
        PastWindow((index - len(values) - missing) * MINUTE_MS, value, 0.0, 0.0, 0.0)
        for index, value in enumerate(values)
    ]
    assert held(now, past, 0, MINUTE_MS, THRESHOLDS.steps) == holding


@pytest.mark.parametrize(
    ("window", "before", "earlier", "onset"),
    [
        (client_window(0.8), (0.74, 0.0), (0.9, 0.0), True),
        (client_window(0.79), (0.0, 0.0), (0.0, 0.0), False),
        (client_window(0.0, muted_ms=1.0), (0.0, 0.0), (0.0, 0.0), True),  # it was not there before
        (client_window(0.9, **NO_LIMIT), (0.0, 0.0), (0.0, 0.0), False),
        (client_window(0.8), (0.8, 0.0), (0.0, 0.0), False),
        (client_window(0.8), (0.0, 1.0), (0.0, 0.0), False),
        # Just below in the window before: the change came in its last seconds.
        (client_window(0.8), (0.79, 0.0), (0.74, 0.0), True),
        (client_window(0.8), (0.79, 0.0), (0.76, 0.0), False),
        (client_window(0.8), (0.79, 0.0), (0.74, 1.0), False),
    ],
)
def test_an_onset_follows_a_window_that_is_clearly_below(
    window: Window, before: tuple[float, float], earlier: tuple[float, float], onset: bool
) -> None:
    numbers = nearness(window, THRESHOLDS)
    one_ago, two_ago = (PastWindow(0, *ago, 0.0, 0.0) for ago in (before, earlier))
    assert (is_near(numbers, THRESHOLDS) and was_calm(one_ago, two_ago, THRESHOLDS)) == onset


def reason(window: Window, level: str = "ok", instant_level: str = "ok") -> str:
    return reason_of(nearness(window, THRESHOLDS), level, instant_level, THRESHOLDS).text


OTHERS: dict[str, Any] = {"shared_with": 2, "members_usage": 100.0, "greediest_usage": 80.0, "greediest_user": "bob"}


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (client_window(0.23), f"at 23.0 % of {RULE}, 154.0 kB/s headroom on broker 1"),
        (client_window(1.2), f"at 120.0 % of {RULE}, 0 B/s headroom on broker 1"),
        (client_window(0.23, 0.33), f"at 23.0 % of {RULE}, 154.0 kB/s headroom on broker 1; bursts to 33.0 %"),
        (client_window(0.23, 0.32), f"at 23.0 % of {RULE}, 154.0 kB/s headroom on broker 1"),
        (
            client_window(0.5, quota_key=REQUESTS, broker_id=-1, matched_entity=""),
            "at 50.0 % of request_percentage 200000.0 %, 100000.0 % headroom at the controller",
        ),
        (client_window(**NO_LIMIT), "no quota applies"),
        (client_window(**UNKNOWN), "no quota was observed yet"),
        (client_window(**ALLOWS_NONE), "no usage, and producer_byte_rate 0 B/s of client-id=orders allows none"),
        (client_window(0.1, **ALLOWS_NONE), "above producer_byte_rate 0 B/s of client-id=orders on broker 1"),
        (
            client_window(quota_key=REQUESTS, throttle_ms=5.0, limit=50.0, rule_limit=50.0),
            "throttled by request_percentage 50.0 % of client-id=orders on broker 1",
        ),
        (
            client_window(decided_by="com.Q", **{**UNKNOWN, "rule_limit": LIMIT}),
            f"the brokers use com.Q instead of {RULE}",
        ),
        (client_window(decided_by="com.Q", **UNKNOWN), "the brokers use com.Q"),
    ],
)
def test_reason_of_a_client_that_was_not_muted(window: Window, text: str) -> None:
    assert reason(window) == text


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (client_window(0.99), f"wants more than {RULE}"),
        (client_window(0.3, usage_max=LIMIT + 1), f"wants more than {RULE}"),
        (
            client_window(0.58, 0.6),
            f"at 58.0 % of {RULE}: short bursts, or another quota such as request_percentage",
        ),
        (
            client_window(**NO_LIMIT),
            "no producer_byte_rate quota applies: another quota such as request_percentage,"
            " or a limit of the brokers' own",
        ),
        (
            client_window(quota_key=REQUESTS, **NO_LIMIT),
            "no request_percentage quota applies: another quota, or a limit of the brokers' own",
        ),
        (
            client_window(quota_key=REQUESTS, limit=50.0, rule_limit=50.0, group_usage=12.0, group_p95=12.0),
            "at 24.0 % of request_percentage 50.0 % of client-id=orders: short bursts, or another quota",
        ),
        (client_window(**UNKNOWN), "no quota was observed yet"),
        (
            client_window(quota_key=REQUESTS, limit=50.0, rule_limit=50.0),
            "by request_percentage 50.0 % of client-id=orders",
        ),
        (client_window(**{**UNKNOWN, "rule_limit": LIMIT}), f"not explained by {RULE}"),
        (
            client_window(decided_by="com.Q", implied_limit=50_200.0, **{**UNKNOWN, "rule_limit": LIMIT}),
            f"not explained by {RULE}; the brokers use com.Q, implied limit 50.2 kB/s",
        ),
        (client_window(decided_by="com.Q", **UNKNOWN), "the brokers use com.Q"),
    ],
)
def test_reason_of_a_client_that_was_muted(window: Window, text: str) -> None:
    muted = window._replace(muted_ms=31_000.0, throttle_ms=905.0)
    assert reason(muted) == f"muted 31.0 s of 60 s on broker 1, throttle times up to 905 ms: {text}"


@pytest.mark.parametrize("quota_key", ["producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"])
def test_a_throttle_time_that_no_request_quota_gives(quota_key: str) -> None:
    """A consumer whose first batch exceeds limit x window gets nothing, again and again."""
    window = client_window(0.0, quota_key=quota_key, muted_ms=60_000.0, throttle_ms=283_000.0)
    assert reason(window).endswith("that do not fit into its window") == (quota_key != "controller_mutation_rate")


def test_a_throttle_time_that_began_earlier() -> None:
    text = reason(client_window(0.99, muted_ms=31_000.0))
    assert text == f"muted 31.0 s of 60 s on broker 1 by an earlier throttle time: wants more than {RULE}"


def test_a_level_that_stays_says_so() -> None:
    assert reason(client_window(0.7), "warn", "watch").endswith("; warn until it stays lower for two windows")
    assert reason(client_window(muted_ms=700.0), "throttled", "ok").endswith(
        RULE + ": short bursts, or another quota such as request_percentage"
    )


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"shared_with": 1}, "another client shares this quota, etl takes 80 % of it"),
        ({}, "2 other clients share this quota, etl takes 80 % of it"),
        ({"greediest_usage": 49.9}, "2 other clients share this quota"),
        (
            {"greediest_user": "alice", "greediest_client_id": "orders"},
            "2 other clients share this quota, this client takes 80 % of it",
        ),
        ({"greediest_client_id": "orders"}, "2 other clients share this quota, user=bob takes 80 % of it"),
        ({"greediest_client_id": ""}, "2 other clients share this quota, (no client id) takes 80 % of it"),
        ({"greediest_usage": 0.0, "greediest_client_id": ""}, "2 other clients share this quota"),
    ],
)
def test_a_shared_quota_names_who_takes_most(other: dict[str, Any], text: str) -> None:
    window = client_window(0.1, **{**OTHERS, "greediest_client_id": "etl", **other})
    assert reason(window) == f"at 10.0 % of {RULE}, 180.0 kB/s headroom on broker 1; {text}"


@pytest.mark.parametrize("name", ["etl", ", x takes 5 % of it", "{name}", "%s"])
def test_own_reason_names_no_other_client(name: str) -> None:
    numbers = nearness(client_window(0.1, **OTHERS, greediest_client_id=name), THRESHOLDS)
    text, own = reason_of(numbers, "ok", "ok", THRESHOLDS)
    assert text.endswith(f"share this quota, {name} takes 80 % of it")
    assert own.endswith("share this quota, another client takes 80 % of it")
