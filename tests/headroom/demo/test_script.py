"""The clients of the demo, and the pace of its producers."""

import pytest

from exporters.model import ANONYMOUS
from headroom.demo.script import CLIENTS, MISLEADING, TOPICS, Pace, quotas


def test_clients_have_the_documented_names() -> None:
    names = {client.client_id for client in CLIENTS}
    assert len(names) == 16
    assert {"java-producer-idle", "java-consumer-throttled", "librdkafka-producer-free"} <= names
    assert {client.topic for client in CLIENTS} == set(TOPICS)


def test_misleading_quota_is_overridden_by_user_and_client_quota() -> None:
    by_entity = {tuple(sorted(entity.items())): values for entity, values in quotas()}
    for client in CLIENTS:
        if client.client_id in MISLEADING:
            loses = by_entity[("client-id", client.client_id),]
            wins = by_entity[("client-id", client.client_id), ("user", ANONYMOUS)]
            assert loses == {client.quota_key: MISLEADING[client.client_id]}
            assert wins == {client.quota_key: client.limit}
    assert len(MISLEADING) == 2


def sent(pace: Pace, ticks: list[float]) -> int:
    return sum(pace.due(tick) for tick in ticks)


def ticks(start_s: float, end_s: float, step_s: float = 0.1) -> list[float]:
    return [start_s + step_s * n for n in range(1, round((end_s - start_s) / step_s) + 1)]


@pytest.mark.parametrize("step_s", [0.05, 0.1, 0.37])
def test_rate_is_independent_of_the_tick_length(step_s: float) -> None:
    pace = Pace(170_000, 8_000, ramp_s=2)
    sent(pace, ticks(0, 10, step_s))
    in_a_minute = sent(pace, ticks(10, 70, step_s)) * 8_000
    assert in_a_minute == pytest.approx(60 * 170_000, rel=0.01)


def test_long_stall_is_not_fully_caught_up() -> None:
    pace = Pace(100_000, 1_000, ramp_s=0)
    sent(pace, ticks(0, 10))
    assert pace.due(15.0) == 100  # a second's worth
    assert pace.due(15.1) == 10
