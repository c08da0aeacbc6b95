"""A client at two gateways: the rates of its parts add up to the broker's, its bytes per second are below it."""

from __future__ import annotations

import random

import pytest

from quota_metrics.windows import QuotaWindow

SECONDS, WARM_UP_S = 150, 30
SIZE = 1_000


def measured(pause_ms: int, seed: int) -> tuple[float, float, float]:
    """Means over two minutes of what a broker measures, of the sum of two gateways that get a request each `pause_ms`
    each, and of the bytes per second."""
    draw = random.Random(f"{pause_ms}/{seed}")
    requests = []
    for gateway in (0, 1):
        at_ms = 1_000 + draw.random() * pause_ms
        while at_ms < SECONDS * 1_000:
            requests.append((int(at_ms), gateway))
            at_ms += pause_ms * draw.uniform(0.9, 1.1)
    broker, parts = QuotaWindow().rate(), [QuotaWindow().rate(), QuotaWindow().rate()]
    whole = summed = 0.0
    coming = iter(sorted(requests))
    request = next(coming, None)
    for now_ms in range(1_000, SECONDS * 1_000, 1_000):
        while request is not None and request[0] <= now_ms:
            broker.record(SIZE, request[0])
            parts[request[1]].record(SIZE, request[0])
            request = next(coming, None)
        if now_ms > WARM_UP_S * 1_000:
            whole += broker.measure(now_ms)
            summed += sum(part.measure(now_ms) for part in parts)
    count = SECONDS - 1 - WARM_UP_S
    sent = sum(SIZE for at_ms, _ in requests if at_ms > WARM_UP_S * 1_000)
    return whole / count, summed / count, sent / (SECONDS - WARM_UP_S)


@pytest.mark.parametrize("pause_ms", [20, 50, 100, 200, 300, 400, 500])
def test_parts_add_up_to_the_brokers_rate(pause_ms: int) -> None:
    for seed in range(3):
        whole, summed, _ = measured(pause_ms, seed)
        assert summed == pytest.approx(whole, rel=0.02)


def test_bytes_of_a_slow_client_are_below_the_brokers_rate() -> None:
    """Kafka's windows begin with a request, and count as whole when they have just begun."""
    differences = [1 - bytes_s / whole for whole, _, bytes_s in (measured(1_000, seed) for seed in range(5))]
    assert min(differences) > 0.01
    assert max(differences) < 0.05
