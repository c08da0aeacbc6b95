"""Rate over limit per quota group and broker: members, headroom and the worst broker."""

from __future__ import annotations

import math
from typing import Any

from exporters.model import UsageSample
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.measure.callback_models import QuotaGroups
from quota_metrics.measure.callbacks import ClientQuotaCallback, DefaultQuotaCallback
from quota_metrics.measure.quota_manager import QuotaManager
from quota_metrics.measure.utilization import ClientUtilization, Utilization, utilizations, worst_by_client
from quota_metrics.windows import QuotaWindow

PRODUCER, REQUEST, MUTATION = "producer_byte_rate", "request_percentage", "controller_mutation_rate"
RULES: Rules = {
    entity_of({"user": "alice", "client-id": "app"}): {PRODUCER: 1000.0},
    entity_of({"user": "bob smith"}): {PRODUCER: 500.0, REQUEST: 50.0, MUTATION: 10.0},
}


def sample(user: str, client_id: str, rate: float, **more: Any) -> UsageSample:
    base = UsageSample("c", PRODUCER, 0, user, client_id, "", 1, 0, rate, 0.0, 0, "gateway")
    return base._replace(**more)


def measured(
    *samples: UsageSample, rules: Rules = RULES, callback: ClientQuotaCallback | None = None
) -> list[Utilization]:
    manager = QuotaManager(callback or DefaultQuotaCallback())
    manager.configure(rules)
    return utilizations(samples, lambda _broker_id: manager, lambda _broker_id: QuotaWindow(), {1: 1600.0})


def clients(*samples: UsageSample) -> dict[str, ClientUtilization]:
    return {one.client_id: one for one in worst_by_client(measured(*samples))}


def test_ratio_is_not_capped_and_headroom_is_reported() -> None:
    (one,) = measured(sample("alice", "app", 1200.0))
    assert (one.ratio, one.headroom, one.burst_left) == (1.2, -200.0, -2000.0)
    (one,) = measured(sample("alice", "app", 0.0))
    assert (one.ratio, one.headroom, one.burst_left) == (0.0, 1000.0, 10_000.0)  # maxValueInQuotaWindow


def test_ratio_without_limit_is_nan() -> None:
    (one,) = measured(sample("carol", "x", 1e9))
    assert math.isnan(one.ratio)
    assert (one.limit, one.headroom, one.burst_left) == (math.inf, math.inf, math.inf)


def test_clients_of_one_quota_are_grouped_per_broker() -> None:
    found = measured(
        sample("bob smith", "a", 100.0),
        sample("bob smith", "b", 150.0, throttle_ms=7.0),
        sample("bob smith", "a", 90.0, broker_id=2),
    )
    assert [(one.broker_id, one.rate, one.ratio, one.throttle_ms, len(one.members)) for one in found] == [
        (1, 250.0, 0.5, 7.0, 2),
        (2, 90.0, 0.18, 0.0, 1),
    ]
    assert found[0].tags == (("user", "bob%20smith"), ("client-id", ""))


def test_rate_of_the_broker_takes_precedence() -> None:
    (one,) = measured(
        sample("bob smith", "a", 100.0, throttle_ms=5.0), sample("bob smith", "", 300.0, source="jmx", throttle_ms=2.0)
    )
    assert (one.rate, one.limit, one.throttle_ms, [member.client_id for member in one.members]) == (
        300,
        500,
        5.0,
        ["a"],
    )


def test_unobservable_rate_is_nan() -> None:
    request, mutation = (sample("bob smith", "a", 0.0, quota_key=key, throttle_ms=9.0) for key in (REQUEST, MUTATION))
    for one in measured(request, mutation):
        assert math.isnan(one.rate)
        assert math.isnan(one.ratio)
        assert one.throttle_ms == 9.0
    assert math.isnan(clients(request)["a"].rate)


def test_request_time_is_also_related_to_all_threads() -> None:
    (one,) = measured(sample("bob smith", "", 40.0, quota_key=REQUEST, source="jmx"))
    assert (one.ratio, one.capacity_ratio) == (0.8, 0.025)
    (one,) = measured(sample("bob smith", "", 40.0, quota_key=REQUEST, source="jmx", broker_id=9))
    assert math.isnan(one.capacity_ratio)


def test_token_bucket_has_no_burst_left() -> None:
    (one,) = measured(sample("bob smith", "", 5.0, quota_key=MUTATION, source="jmx"))
    assert one.ratio == 0.5
    assert math.isnan(one.burst_left)


def test_worst_broker_of_each_client_is_selected() -> None:
    found = clients(
        sample("bob smith", "a", 100.0),
        sample("bob smith", "b", 150.0),
        sample("bob smith", "a", 260.0, broker_id=2),
        sample("carol", "free", 5.0),
        sample("carol", "free", 6.0, broker_id=2),
    )
    assert {name: (one.worst.broker_id, one.rate, one.worst.rate) for name, one in found.items()} == {
        "a": (2, 260.0, 260.0),
        "b": (1, 150.0, 250.0),
        "free": (1, 5.0, 5.0),  # without a limit the lowest broker id
    }


def test_group_known_only_from_jmx_is_listed() -> None:
    (one,) = worst_by_client(measured(sample("bob smith", "", 400.0, source="jmx", throttle_ms=3.0)))
    assert (one.user, one.client_id, one.rate, one.throttle_ms, one.worst.ratio) == ("bob smith", "", 400, 3, 0.8)


def test_callback_defines_quota_groups() -> None:
    groups = QuotaGroups()
    groups.configure({"groups": {"g": [{"user": "alice"}, {"user": "carol"}]}, "limits": {"PRODUCE": 1000}})
    (one,) = measured(sample("alice", "app", 100.0), sample("carol", "x", 700.0), callback=groups)
    assert (one.tags, one.limit, one.ratio) == ((("group", "g"),), 1000.0, 0.8)


def test_ratio_of_a_zero_quota_is_infinite() -> None:
    (one,) = measured(sample("alice", "app", 1.0), rules={entity_of({"client-id": "app"}): {PRODUCER: 0.0}})
    assert one.ratio == math.inf


def test_non_client_quota_keys_are_ignored() -> None:
    assert measured(sample("alice", "app", 1.0, quota_key="connection_creation_rate")) == []


def test_muting_broker_is_worse_than_higher_utilization() -> None:
    groups = measured(sample("alice", "app", 990.0), sample("alice", "app", 100.0, broker_id=2))
    assert [one.worst.broker_id for one in worst_by_client(groups)] == [1]
    for muted_ms, worst in ((600.0, 2), (599.0, 1)):  # 1 % of a minute
        found = worst_by_client(groups, lambda _key, _user, _client_id, broker: muted_ms if broker == 2 else 0.0)  # noqa: B023
        assert [one.worst.broker_id for one in found] == [worst]
