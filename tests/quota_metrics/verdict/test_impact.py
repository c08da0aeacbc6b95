"""What a client feels: each symptom by an example, and drawn clients against a reference."""

import random
from collections import Counter
from typing import Any

import pytest

from quota_metrics.verdict.impact import IMPACTS, Impact, impact_of, impact_text, number_of_impact
from quota_metrics.verdict.window import Telemetry
from tests.kit.client_windows import client_window
from tests.spark_jobs.impact_reference import TIMEOUT_MS, Felt
from tests.spark_jobs.impact_reference import impact_of as expected_impact_of

CASES = 3_000
JAVA = "apache-kafka-java"
PRODUCER, CONSUMER, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
_DRAWN: dict[str, list[Any]] = {  # None twice as often as any number
    "quota_key": [PRODUCER, CONSUMER, REQUESTS],
    "software_name": [*TIMEOUT_MS, "franz-go", "unknown", ""],
    "client_id": ["orders", "my-connector-producer-1", "connector-dlq-producer-s3-0", "app-StreamThread-1-producer"],
    "muted_ms": [0.0, 0.0, 1.0, 900.0],
    "produce_throttle_ms": [None, None, 0.0, 0.4, 900.0, 999.5, 1150.0],
    "fetch_throttle_ms": [None, None, 0.0, 20.0, 90_000.0],
    "request_latency_ms": [None, None, 3.0, 999.9, 1000.0, 5000.25],
    "queue_time_ms": [None, None, 0.0, 499.0, 500.0, 59_999.0, 60_000.0, 119_999.0, 120_000.0, 150_000.0, 300_000.0],
    "rebalances": [None, None, 0.0, 1.0, 2.5],
    "records_lag": [None, None, 0.0, 999.0, 1000.0, 1001.0, 11_000.0, 1e9],
    "records_failed": [None, None, 0.0, 0.0, 7.0],
    "records_refused": [None, None, 0.0, 0.0, 2.0],
    "records_retried": [None, None, 0.0, 0.0, 3.0],
    "lag_per_min": [None, None, -500.0, 0.0, 99.0, 100.0, 1100.0, 2000.5, 1e8],
    "top_sender": ["", "one"],
    "top_sender_share": [None, None, 0.3, 0.5, 0.745, 1.0],
    "top_receiver": ["", "two"],
    "top_receiver_share": [None, None, 0.49, 0.505, 0.999, 1.0],
}


def drawn(seed: int) -> list[Felt]:
    """Clients of which each reports some signals, or none."""
    chosen = random.Random(seed)
    clients = []
    for _ in range(CASES):
        share = chosen.choice([0.0, 0.2, 0.5, 1.0])  # of the signals that it reports
        values = {name: chosen.choice(drawable) for name, drawable in _DRAWN.items()}
        kept: dict[str, Any] = {
            name: None if None in _DRAWN[name] and chosen.random() >= share else values[name] for name in values
        }
        clients.append(Felt(**kept))
    return clients


def felt(quota_key: str = PRODUCER, muted_ms: float = 0.0, software_name: str = JAVA, **reported: Any) -> Impact:
    window = client_window(quota_key=quota_key, muted_ms=muted_ms, client_id=reported.pop("client_id", "orders"))
    return impact_of(window, software_name, Telemetry(**reported))


def test_impact_is_that_of_the_reference() -> None:
    cases = drawn(1)
    expected = [expected_impact_of(case) for case in cases]
    computed = [felt(**case._asdict())[:2] for case in cases]
    assert [pair for pair in zip(cases, computed, expected, strict=True) if pair[1] != pair[2]] == []
    assert min(Counter(impact for impact, _ in expected)[impact] for impact in IMPACTS) >= 50


@pytest.mark.parametrize(
    ("impact", "reason", "reported"),
    [
        ("unknown", "", {}),
        ("unknown", "", {"records_lag": 5_000.0}),  # of a producer's quota only what a producer reports counts
        ("none", "", {"produce_throttle_ms": 0.0}),
        ("losing", "7 records failed or expired", {"records_failed": 7.0}),
        ("losing", "2 sends found no room in the buffer", {"records_failed": 0.0, "records_refused": 2.0}),
        ("delayed", "records waited 500 ms in the producer", {"queue_time_ms": 500.0}),
        (
            "falling-behind",
            "records waited 60.0 s in the producer of the 120.0 s after which they are lost",
            {"queue_time_ms": 60_000.0},
        ),
        (
            "losing",
            "records waited 120.0 s in the producer of the 120.0 s after which they are lost",
            {"queue_time_ms": 120_000.0},
        ),
        (
            "delayed",
            "records waited 120.0 s in the producer",
            {"queue_time_ms": 120_000.0, "client_id": "connector-producer-pg-connector-0"},
        ),
        ("delayed", "3 records sent again", {"records_failed": 0.0, "records_retried": 3.0}),
        ("delayed", "requests took up to 1.0 s", {"request_latency_ms": 1_000.0, "records_lag": 0.0}),
        ("delayed", "client felt produce throttle 900 ms", {"produce_throttle_ms": 900.0}),
        ("none", "client felt produce throttle 900 ms", {"produce_throttle_ms": 900.0, "queue_time_ms": 3.0}),
        (
            "none",
            "instance i1 reports 75 % of its bytes",
            {"records_failed": 0.0, "top_sender": "i1", "top_sender_share": 0.745},
        ),
        ("none", "", {"records_failed": 0.0, "top_sender": "i1", "top_sender_share": 1.0}),  # its only one
    ],
)
def test_symptoms_of_a_producer(impact: str, reason: str, reported: dict[str, Any]) -> None:
    assert felt(**reported)[:2] == (impact, reason)


@pytest.mark.parametrize(
    ("impact", "reason", "reported"),
    [
        ("unknown", "", {"records_failed": 7.0}),
        ("none", "", {"records_lag": 999.0, "muted_ms": 5.0}),
        ("delayed", "1000 records behind", {"records_lag": 1_000.0, "muted_ms": 5.0}),
        ("falling-behind", "1000 records behind, 100 more each minute", {"records_lag": 1_000.0, "lag_per_min": 100.0}),
        ("none", "2000 records behind", {"records_lag": 2_000.0, "lag_per_min": 199.0}),
        ("none", "", {"records_lag": 0.0, "rebalances": 2.0}),
        ("delayed", "2 rebalances", {"records_lag": 0.0, "rebalances": 2.0, "muted_ms": 5.0}),
        ("delayed", "client felt fetch throttle 1.5 s", {"fetch_throttle_ms": 1_500.0}),
    ],
)
def test_symptoms_of_a_consumer(impact: str, reason: str, reported: dict[str, Any]) -> None:
    assert felt(CONSUMER, **reported)[:2] == (impact, reason)


def test_other_quotas_judge_both_sides() -> None:
    both = felt(REQUESTS, produce_throttle_ms=5.0, fetch_throttle_ms=20.0, records_failed=1.0)
    assert (both.impact, both.reason) == ("losing", "1 records failed or expired; client felt throttle 20 ms")
    assert both.throttle_ms == 20.0


def test_busiest_instance_is_of_the_side_that_the_quota_limits() -> None:
    shares: dict[str, Any] = {
        "top_sender": "s",
        "top_sender_share": 0.4,
        "top_receiver": "r",
        "top_receiver_share": 1.0,
    }
    assert felt(PRODUCER, **shares)[3:] == ("s", 0.4)
    assert felt(CONSUMER, **shares)[3:] == ("", None)
    assert felt(REQUESTS, **shares)[3:] == ("", None)


def test_texts_and_numbers() -> None:
    assert [number_of_impact(impact) for impact in (*IMPACTS, "of a later release")] == [-1, 0, 1, 2, 3, -1]
    assert impact_text("unknown", "") == "unknown: no telemetry in this minute says it"
    assert (impact_text("none", ""), impact_text("delayed", "why")) == ("none", "delayed: why")
