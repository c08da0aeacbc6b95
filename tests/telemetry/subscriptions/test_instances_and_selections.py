"""The attributes of an instance, and which instances are evicted; which subscriptions match, and what they request."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from exporters.model import Connection
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS
from telemetry.subscriptions.kip714_rules import Instance, Instances, attributes_of
from telemetry.subscriptions.subscription import (
    MATCH_KEYS,
    MergedSubscriptions,
    Subscriptions,
    is_match,
    parse_subscription,
    without_covered,
)
from telemetry.subscriptions.subscription_id import subscription_crc

NOW_MS = 1_700_000_000_000
ID = bytes.fromhex("00112233445566778899aabbccddeeff")
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)
CLIENT = attributes_of(ID, CONNECTION, "producer-1")


def selected(*subscriptions: dict[str, str]) -> MergedSubscriptions:
    all_of_them = Subscriptions()
    all_of_them.change([parse_subscription(f"sub-{n}", values) for n, values in enumerate(subscriptions)])
    return all_of_them.select(CLIENT)


def instance(client_instance_id: bytes = ID, interval_ms: int = 300_000) -> Instance:
    selection = selected({"metrics": "*", "interval.ms": str(interval_ms)})
    return Instance(client_instance_id, CONNECTION, "app", selection, 1)


# ClientMetricsInstanceMetadata


def test_attributes_come_from_the_connection() -> None:
    assert CLIENT == {
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
    of_ipv6 = attributes_of(ID, replace(CONNECTION, source_address="2001:db8::1"), None)
    assert of_ipv6["client_source_address"] == "2001:db8:0:0:0:0:0:1"


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


# ClientMetricsInstanceMetadataTest


@pytest.mark.parametrize(
    "match",
    ["", "client_id=.*", "client_id=producer.*", ",".join(f"{key}={CLIENT[key]}" for key in sorted(MATCH_KEYS))],
)
def test_client_matches_all_criteria(match: str) -> None:
    assert is_match(parse_subscription("sub", {"match": match}), CLIENT)


@pytest.mark.parametrize("before", ["", "client_id=.*,"])
@pytest.mark.parametrize(
    "criterion",
    [
        "client_id=producer-2",
        "client_instance_id=ABEiM0RVZneImaq7zN3u_wrandom",
        "client_software_name=apache-kafka-java-1",
        "client_software_version=3.5.x",
        "client_source_address=1.2.3.4",
        "client_source_port=8080",
    ],
)
def test_one_criterion_that_does_not_match_is_enough(before: str, criterion: str) -> None:
    assert not is_match(parse_subscription("sub", {"match": before + criterion}), CLIENT)


@pytest.mark.parametrize(
    ("criterion", "client"),
    [
        ("client_id=.*", {"client": "producer-1"}),
        ("client_id=.*", {"*": "producer-1"}),
        ("client_software_name=.*", {**CLIENT, "client_software_name": None}),
        ("client_software_version=.*", {**CLIENT, "client_software_version": None}),
    ],
)
def test_what_a_client_does_not_have_matches_nothing(criterion: str, client: dict[str, str | None]) -> None:
    assert not is_match(parse_subscription("sub", {"match": criterion}), client)


# ClientMetricsManager.createClientInstance


@pytest.mark.parametrize(
    ("subscriptions", "metrics", "interval_ms"),
    [
        ([], (), 300_000),
        ([{"interval.ms": "1000"}, {"interval.ms": "2000"}], (), 1_000),
        ([{"interval.ms": "3600000"}], (), 300_000),  # the default is always among them
        ([{"interval.ms": "1000"}, {"metrics": "a"}], ("a",), 1_000),
        ([{"interval.ms": "1000", "metrics": "a", "match": "client_id=x"}, {"metrics": "b"}], ("b",), 300_000),
        ([{"metrics": "a,b", "interval.ms": "30000"}, {"metrics": "c,*"}], ("*",), 30_000),
        ([{"metrics": "org.*"}], ("org.*",), 300_000),  # no wildcard, but a prefix
    ],
)
def test_matching_subscriptions_are_merged(
    subscriptions: list[dict[str, str]], metrics: tuple[str, ...], interval_ms: int
) -> None:
    selection = selected(*subscriptions)
    assert (selection.metrics, selection.requested_metrics, selection.interval_ms) == (metrics, metrics, interval_ms)


def test_covered_prefixes_are_in_the_crc_but_not_requested() -> None:
    selection = selected({"metrics": "org.apache.kafka.producer.,org.apache.kafka."})
    assert set(selection.metrics) == {"org.apache.kafka.producer.", "org.apache.kafka."}
    assert selection.requested_metrics == ("org.apache.kafka.",)
    assert selection.crc == subscription_crc(selection.metrics, 300_000)


def test_equal_matches_share_a_selection_until_a_change() -> None:
    subscriptions = Subscriptions()
    subscriptions.change([parse_subscription("sub", {"metrics": "a"})])
    first = subscriptions.select(CLIENT)
    assert subscriptions.select({**CLIENT, "client_id": "another"}) is first
    subscriptions.change([parse_subscription("sub", {"metrics": "b"})])
    assert subscriptions.select(CLIENT).metrics == ("b",)


@given(st.lists(st.text("ab.", max_size=4), unique=True), st.text("ab.", max_size=6))
def test_removing_covered_prefixes_keeps_matched_metrics(prefixes: list[str], metric: str) -> None:
    kept = without_covered(prefixes)
    assert any(map(metric.startswith, kept)) == any(map(metric.startswith, prefixes))
    assert list(kept) == [prefix for prefix in prefixes if prefix in kept]
    assert not any(a != b and a.startswith(b) for a in kept for b in kept)
