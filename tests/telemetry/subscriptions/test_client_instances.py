"""telemetry/subscriptions/kip714_rules.py: the attributes of an instance, and which instances are evicted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS
from telemetry.subscriptions.kip714_rules import Instance, Instances, attributes_of
from telemetry.subscriptions.subscription import MergedSubscriptions, Subscriptions, parse_subscription
from tests.telemetry.subscriptions.broker import CONNECTION, NOW_MS
from tests.telemetry.subscriptions.broker import OTHER_ID as ID

INTERVAL_MS = 300_000


def selection(interval_ms: int = INTERVAL_MS) -> MergedSubscriptions:
    subscriptions = Subscriptions()
    subscriptions.change([parse_subscription("sub", {"metrics": "*", "interval.ms": str(interval_ms)})])
    return subscriptions.select({})


def instance(client_instance_id: bytes = ID, interval_ms: int = INTERVAL_MS) -> Instance:
    return Instance(client_instance_id, CONNECTION, "app", selection(interval_ms), 1)


# ClientMetricsInstanceMetadata


def test_attributes_come_from_the_connection() -> None:
    assert attributes_of(ID, CONNECTION, "producer-1") == {
        "client_instance_id": "ABEiM0RVZneImaq7zN3u_w",
        "client_id": "producer-1",
        "client_software_name": "apache-kafka-java",
        "client_software_version": "3.5.2",
        "client_source_address": "127.0.0.1",
        "client_source_port": "56078",
        "principal": "alice",
        "listener": "PLAINTEXT",
        "cluster": "cluster",
    }
    assert attributes_of(ID, CONNECTION, None)["client_id"] is None


def test_client_id_attribute_is_truncated_to_the_matched_length() -> None:
    kept = attributes_of(ID, CONNECTION, "x" * 32_767)["client_id"]
    assert kept == "x" * MAX_SUBJECT_CHARS


# instances and their cache


@pytest.mark.parametrize(("interval_ms", "lives_ms"), [(100, 60_000), (20_000, 60_000), (30_000, 90_000)])
def test_instance_expires_after_three_intervals_and_at_least_a_minute(interval_ms: int, lives_ms: int) -> None:
    for look in ("touch", "expire"):
        instances = Instances(10)
        instances.put(instance(interval_ms=interval_ms), "c", NOW_MS)
        instances.expire(NOW_MS + lives_ms - 1)
        assert ID in instances
        if look == "touch":
            assert instances.touch(ID, NOW_MS + lives_ms) is None
        else:
            instances.expire(NOW_MS + lives_ms)
        assert len(instances) == 0


def test_touch_restarts_expiry() -> None:
    instances = Instances(10)
    instances.put(instance(interval_ms=100), "c", NOW_MS)
    assert instances.touch(ID, NOW_MS + 59_999) is not None
    instances.expire(NOW_MS + 60_000)
    assert ID in instances


def test_least_recently_used_instance_is_evicted() -> None:
    instances = Instances(2)
    for number in range(3):
        instances.put(instance(bytes([number]) * 16), f"c{number}", NOW_MS)
        instances.touch(bytes(16), NOW_MS)
    assert [bytes([number]) * 16 in instances for number in range(3)] == [True, False, True]
    instances.disconnected("c1")
    assert len(instances) == 2


def test_connection_index_is_bounded_without_disconnects() -> None:
    instances = Instances(2)
    for number in range(10):
        instances.put(instance(), f"c{number}", NOW_MS)
    assert len(instances._by_connection) == 4
    instances.disconnected("c9")
    assert ID not in instances


class Lifecycle(RuleBasedStateMachine):
    """Memory stays bounded: each kept entry belongs to an open connection or a live instance."""

    def __init__(self) -> None:
        super().__init__()
        self.instances = Instances(3)
        self.now_ms = NOW_MS
        self.open: set[str] = set()

    @rule(number=st.integers(1, 5), connection=st.integers(1, 4), interval_ms=st.sampled_from([100, 30_000]))
    def put(self, number: int, connection: int, interval_ms: int) -> None:
        client_instance_id = bytes([number]) * 16
        self.instances.touch(client_instance_id, self.now_ms)
        new = instance(client_instance_id, interval_ms)
        self.instances.put(new, str(connection), self.now_ms)
        self.open.add(str(connection))
        assert self.instances.touch(client_instance_id, self.now_ms) is new

    @rule(connection=st.integers(1, 4))
    def disconnect(self, connection: int) -> None:
        was = self.instances._by_connection.get(str(connection))
        self.instances.disconnected(str(connection))
        self.open.discard(str(connection))
        assert was is None or was not in self.instances

    @rule(ms=st.sampled_from([0, 1, 30_000, 60_000, 90_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.instances.expire(self.now_ms)

    @invariant()
    def consistent(self) -> None:
        assert self.instances._by_connection.keys() <= self.open
        assert len(self.instances) <= 3
        assert self.instances._lifetimes == Counter(
            held.selection.lifetime_ms for held in self.instances._by_id.values()
        )
        assert all(
            held.touched_ms + held.selection.lifetime_ms > self.now_ms for held in self.instances._by_id.values()
        )


TestLifecycle = Lifecycle.TestCase
