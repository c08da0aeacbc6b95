"""Quota callbacks: the default one, the two included models, and failing ones."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from quota_metrics.config.entities import Entity, Rules, entity_of
from quota_metrics.measure.callback_models import PartitionShare, QuotaGroups
from quota_metrics.measure.callbacks import (
    METHODS,
    CallbackError,
    ClientQuotaCallback,
    ClientQuotaType,
    ClusterMetadata,
    DefaultQuotaCallback,
    Partition,
    load,
)
from quota_metrics.measure.quota_manager import Quota, QuotaManager
from quota_metrics.windows import UNLIMITED

PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


def rules(*rows: tuple[Mapping[str, str | None], Mapping[str, float]]) -> Rules:
    return {entity_of(entity): dict(values) for entity, values in rows}


def test_default_callback_matches_the_broker() -> None:
    manager = QuotaManager(DefaultQuotaCallback())
    manager.configure(rules(({"user": "alice"}, {PRODUCER: 10.0}), ({"client-id": None}, {PRODUCER: 5.0})))
    assert manager.quota(PRODUCER, "alice", "app") == Quota({"user": "alice", "client-id": ""}, 10.0)
    assert manager.quota(PRODUCER, "bob", "app") == Quota({"user": "", "client-id": "app"}, 5.0)
    assert manager.quota(CONSUMER, "bob", "app") == Quota({"user": "", "client-id": "app"}, UNLIMITED)
    manager.configure(rules(({"client-id": None}, {PRODUCER: 6.0})))
    assert manager.quota(PRODUCER, "alice", "app") == Quota({"user": "", "client-id": "app"}, 6.0)
    assert not manager.faults


class Recorder(DefaultQuotaCallback):
    """Records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[Any, ...]] = []
        self.reset = False

    def update_quota(self, quota_type: ClientQuotaType, entity: Entity, value: float) -> None:
        self.said.append(("update", quota_type.value, entity, value))

    def remove_quota(self, quota_type: ClientQuotaType, entity: Entity) -> None:
        self.said.append(("remove", quota_type.value, entity))

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Mapping[str, str]) -> float | None:
        self.said.append(("limit", quota_type.value, dict(metric_tags)))
        return None

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        return self.reset

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        return cluster.cluster_id == "changed"


def test_callback_receives_only_changes_of_client_quotas() -> None:
    callback = Recorder()
    manager = QuotaManager(callback)
    alice, ip = entity_of({"user": "alice"}), entity_of({"ip": None})
    manager.configure({alice: {PRODUCER: 1.0, CONSUMER: 2.0}, ip: {"connection_creation_rate": 3.0}})
    manager.configure({alice: {PRODUCER: 1.0, REQUEST: 4.0}})
    assert callback.said == [
        ("update", "PRODUCE", alice, 1.0),
        ("update", "FETCH", alice, 2.0),
        ("update", "REQUEST", alice, 4.0),
        ("remove", "FETCH", alice),
    ]


def test_limits_are_cached_until_a_change() -> None:
    callback = Recorder()
    manager = QuotaManager(callback)

    def asked() -> int:
        callback.said.clear()
        for _ in range(3):
            manager.quota(PRODUCER, "alice", "app")
        return len(callback.said)

    assert asked() == 1
    assert asked() == 0
    manager.configure(rules(({"user": "x"}, {PRODUCER: 1.0})))
    assert asked() == 1
    manager.configure(rules(({"user": "x"}, {PRODUCER: 1.0})))
    manager.follow(ClusterMetadata("same", ()))
    assert asked() == 0
    manager.follow(ClusterMetadata("changed", ()))
    assert asked() == 1
    callback.reset = True
    assert asked() == 3


def test_limit_cache_is_bounded() -> None:
    manager = QuotaManager(Recorder(), max_tags=10)
    for number in range(1000):
        manager.quota(PRODUCER, "u", f"c{number}")
    assert len(manager._limits) <= 10


def test_clients_of_a_group_share_one_quota() -> None:
    groups = {"payments": [{"user": "alice"}, {"user": "bob", "client-id": "pay"}, {"client-id": "cron"}]}
    callback = QuotaGroups()
    callback.configure({"groups": groups})
    manager = QuotaManager(callback)
    manager.configure(rules(({"user": "payments"}, {PRODUCER: 100.0}), ({"user": "bob"}, {PRODUCER: 7.0})))
    shared = Quota({"group": "payments"}, 100.0)
    assert manager.quota(PRODUCER, "alice", "x") == shared
    assert manager.quota(PRODUCER, "bob", "pay") == shared
    assert manager.quota(PRODUCER, "carol", "cron") == shared
    assert manager.quota(PRODUCER, "bob", "other") == Quota({"user": "bob", "client-id": ""}, 7.0)
    assert manager.quota(CONSUMER, "alice", "x") == Quota({"group": "payments"}, UNLIMITED)


def test_groups_are_derived_from_user_names_with_a_default() -> None:
    callback = QuotaGroups()
    callback.configure({"separator": "_", "limits": {"PRODUCE": 1000}})
    manager = QuotaManager(callback)
    assert manager.quota(PRODUCER, "group0_user1", "x") == Quota({"group": "group0"}, 1000.0)
    manager.configure(rules(({"user": "_"}, {PRODUCER: 500.0})))
    assert manager.quota(PRODUCER, "group0_user2", "y") == Quota({"group": "group0"}, 500.0)
    manager.configure(rules(({"user": "_"}, {PRODUCER: 500.0}), ({"user": "group0_"}, {PRODUCER: 50.0})))
    assert manager.quota(PRODUCER, "group0_user2", "y").limit == 50.0
    assert manager.quota(PRODUCER, "group1_user1", "y").limit == 500.0
    callback.configure({"separator": "_", "limits": {"PRODUCE": 9}})
    manager.configure({})
    assert manager.quota(PRODUCER, "group1_user1", "y").limit == 9.0


def cluster(**leaders: list[int]) -> ClusterMetadata:
    """Topics (`_` for `-`) with the leader of each partition."""
    partitions = [
        Partition(topic, number, leader) for topic, ids in leaders.items() for number, leader in enumerate(ids)
    ]
    return ClusterMetadata("c", tuple(partitions))


def test_custom_quota_callback_test() -> None:
    """CustomQuotaCallbackTest: a group's limit scaled by the partitions of its topics that the broker leads."""
    callback = PartitionShare()
    settings = {
        "separator": "_",
        "node.id": 1,
        "topics": {"group0": ["group0_"]},
        "limits": {"PRODUCE": 2e9, "FETCH": 1e9},
    }
    callback.configure(settings)
    manager = QuotaManager(callback)

    def limits() -> tuple[float, float]:
        return tuple(manager.quota(key, "group0_user1", "c").limit for key in (PRODUCER, CONSUMER))  # type: ignore[return-value]  # two keys, two limits

    manager.follow(cluster(group0_topic1=[1], group1_topic=[2, 2]))
    manager.configure(rules(({"user": "group0_"}, {PRODUCER: 1e6, CONSUMER: 2e6, REQUEST: 300.0})))
    assert limits() == (1e6, 2e6)
    manager.configure(rules(({"user": "group0_"}, {PRODUCER: 9000.0, CONSUMER: 3000.0})))
    assert limits() == (9000.0, 3000.0)
    manager.configure({})
    assert limits() == (2e9, 1e9)
    manager.configure(rules(({"user": "_"}, {PRODUCER: 8000.0, CONSUMER: 2500.0})))
    assert limits() == (8000.0, 2500.0)
    manager.configure(rules(({"user": "group0_"}, {PRODUCER: 800_000.0, CONSUMER: 250_000.0, REQUEST: 300.0})))
    manager.follow(cluster(group0_topic1=[1], group0_topic2=[2] * 99))
    assert limits() == (8000.0, 2500.0)
    assert manager.quota(REQUEST, "group0_user1", "c").limit == 300.0
    manager.follow(cluster(group0_topic1=[1]))
    assert limits() == (800_000.0, 250_000.0)
    manager.configure({})
    callback.configure(settings | {"limits": {"PRODUCE": 8000, "FETCH": 2500}})
    assert limits() == (8000.0, 2500.0)


def test_partition_share_counts_at_least_one_partition() -> None:
    callback = PartitionShare()
    callback.configure({"node.id": "3"})
    manager = QuotaManager(callback)
    manager.configure(rules(({"user": None}, {PRODUCER: 100.0})))
    assert manager.quota(PRODUCER, "u", "c").limit == 100.0
    manager.follow(cluster(a=[1, 2, -1], b=[1]))
    assert manager.quota(PRODUCER, "u", "c").limit == 25.0
    manager.follow(cluster(a=[3, 3, 2], b=[3]))
    assert manager.quota(PRODUCER, "u", "c") == Quota({"user": "u", "client-id": ""}, 75.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"groups": ["g"]},
        {"groups": {"g": {}}},
        {"groups": {"g": ["alice"]}},
        {"groups": {"g": [{}]}},
        {"groups": {"g": [{"user": None}]}},
        {"groups": {"g": [{"ip": "::1"}]}},
        {"groups": {"g": [{"user": "a"}], "h": [{"user": "a"}]}},
        {"separator": 1},
        {"limits": {"OTHER": 1}},
        {"limits": {"PRODUCE": "x"}},
        {"topics": {"g": "prefix"}},
        {"node.id": "x"},
    ],
)
def test_invalid_settings_raise_callback_error(settings: dict[str, object]) -> None:
    with pytest.raises(CallbackError):
        load("quota_metrics.measure.callback_models:PartitionShare", settings)


@pytest.fixture
def foreign() -> Iterator[types.ModuleType]:
    """A third-party module."""
    module = types.ModuleType("foreign_callbacks")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_callback_is_loaded_by_path() -> None:
    assert isinstance(load("quota_metrics.measure.callback_models:QuotaGroups", {"separator": "_"}), QuotaGroups)
    assert len(METHODS) == 8


@pytest.mark.parametrize("path", ["", "nowhere:Class", "foreign_callbacks", "foreign_callbacks:Absent", "a.b:c:d"])
def test_invalid_path_raises_callback_error(foreign: types.ModuleType, path: str) -> None:
    with pytest.raises(CallbackError, match="cannot be used"):
        load(path, {})


def test_invalid_callback_class_raises_callback_error(foreign: types.ModuleType) -> None:
    class Partial:
        def configure(self, configs: Mapping[str, object]) -> None:
            """Accepts everything."""

    class Failing(DefaultQuotaCallback):
        def configure(self, configs: Mapping[str, object]) -> None:
            raise KeyError("password")

    foreign.__dict__.update(Partial=Partial, Failing=Failing)
    with pytest.raises(CallbackError, match="has no method quota_metric_tags, quota_limit"):
        load("foreign_callbacks:Partial", {})
    with pytest.raises(CallbackError, match="cannot be used: KeyError: 'password'"):
        load("foreign_callbacks:Failing", {})


class Broken(DefaultQuotaCallback):
    """Answers with `answer`, or raises it."""

    def __init__(self, method: str, answer: object) -> None:
        super().__init__()

        def broken(*arguments: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        setattr(self, method, broken)


@pytest.mark.parametrize(
    ("method", "answer", "limit"),
    [
        ("quota_metric_tags", RuntimeError("x"), UNLIMITED),
        ("quota_metric_tags", "tags", UNLIMITED),
        ("quota_metric_tags", {"user": 1}, UNLIMITED),
        ("quota_limit", RuntimeError("x"), UNLIMITED),
        ("quota_limit", "10", UNLIMITED),
        ("quota_limit", True, UNLIMITED),
        ("quota_limit", math.nan, UNLIMITED),
        ("update_quota", RuntimeError("x"), UNLIMITED),
        ("quota_reset_required", RuntimeError("x"), 10.0),
        ("update_cluster_metadata", RuntimeError("x"), 10.0),
        ("close", RuntimeError("x"), 10.0),
    ],
)
def test_failing_callback_is_contained_and_counted(method: str, answer: object, limit: float) -> None:
    callback: ClientQuotaCallback = Broken(method, answer)
    manager = QuotaManager(callback)
    manager.configure(rules(({"user": None}, {PRODUCER: 10.0})))
    manager.follow(ClusterMetadata("c", ()))
    assert manager.quota(PRODUCER, "u", "c").limit == limit
    manager.close()
    assert manager.faults == {method: 1}
    assert manager.last_fault.startswith(f"the quota callback's {method} ")
