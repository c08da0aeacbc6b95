"""The impact of drawn clients is what a reference in plain Python says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from quota_metrics.levels.impact import FELT, IMPACT, IMPACT_REASON, IMPACTS
from quota_metrics.levels.windows_query import SETTINGS
from tests.kit.clickhouse import RunningClickHouse
from tests.spark_jobs.impact_reference import TIMEOUT_MS, Felt, impact_of

pytestmark = pytest.mark.clickhouse

CASES, OF_A_QUERY = 3_000, 500
_TEXTS = ("quota_key", "software_name", "top_sender", "top_receiver")
_DRAWN: dict[str, list[Any]] = {  # None twice as often as any number
    "quota_key": ["producer_byte_rate", "consumer_byte_rate", "request_percentage"],
    "software_name": [*TIMEOUT_MS, "franz-go", "unknown", ""],
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
    found = []
    for _ in range(CASES):
        share = chosen.choice([0.0, 0.2, 0.5, 1.0])  # of the signals that it reports
        values = {name: chosen.choice(each) for name, each in _DRAWN.items()}
        kept: dict[str, Any] = {
            name: None if None in _DRAWN[name] and chosen.random() >= share else values[name] for name in values
        }
        found.append(Felt(**kept))
    return found


def of_clickhouse(clickhouse: RunningClickHouse, cases: list[Felt]) -> list[tuple[str, str]]:
    types = ", ".join(f"{name} {'String' if name in _TEXTS else 'Nullable(Float64)'}" for name in Felt._fields)
    rows = ", ".join(f"({', '.join('NULL' if value is None else repr(value) for value in case)})" for case in cases)
    felt = ", ".join(f"{expression} AS {name}" for name, expression in FELT.items())
    query = f"SELECT {IMPACT}, {IMPACT_REASON} FROM (SELECT *, {felt} FROM values('{types}', {rows})) {SETTINGS}"
    return [(impact, reason) for impact, reason in clickhouse.store.query(query)]


@pytest.mark.parametrize("seed", [1])
def test_impact_is_that_of_the_reference(clickhouse: RunningClickHouse, seed: int) -> None:
    cases = drawn(seed)
    expected = [impact_of(case) for case in cases]
    found = [
        one for at in range(0, CASES, OF_A_QUERY) for one in of_clickhouse(clickhouse, cases[at : at + OF_A_QUERY])
    ]
    wrong = [pair for pair in zip(cases, found, expected, strict=True) if pair[1] != pair[2]]
    assert wrong == []
    assert min(Counter(impact for impact, _ in expected)[impact] for impact in IMPACTS) >= 50
