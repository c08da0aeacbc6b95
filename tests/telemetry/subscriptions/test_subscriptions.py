"""telemetry/subscriptions/subscription.py: which subscriptions match, and which metrics they request together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.subscriptions.subscription import (
    MergedSubscriptions,
    Subscriptions,
    is_match,
    parse_subscription,
    without_covered,
)
from telemetry.subscriptions.subscription_id import subscription_crc

CLIENT: dict[str, str | None] = {
    "client_instance_id": "ABEiM0RVZneImaq7zN3u_w",
    "client_id": "producer-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "3.5.2",
    "client_source_address": "127.0.0.1",
    "client_source_port": "56078",
}


def selected(*subscriptions: dict[str, str]) -> MergedSubscriptions:
    all_of_them = Subscriptions()
    all_of_them.change([parse_subscription(f"sub-{n}", values) for n, values in enumerate(subscriptions)])
    return all_of_them.select(CLIENT)


# ClientMetricsInstanceMetadataTest


@pytest.mark.parametrize(
    "match",
    ["", "client_id=.*", "client_id=producer.*", ",".join(f"{key}={value}" for key, value in CLIENT.items())],
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
