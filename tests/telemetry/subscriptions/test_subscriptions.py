"""telemetry/subscriptions/subscription.py: which subscriptions match, and which metrics they request together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.subscriptions.java.hash import subscription_crc
from telemetry.subscriptions.subscription import (
    MergedSubscriptions,
    Subscriptions,
    is_match,
    parse_subscription,
    without_covered,
)

CLIENT: dict[str, str | None] = {
    "client_instance_id": "ABEiM0RVZneImaq7zN3u_w",
    "client_id": "producer-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "3.5.2",
    "client_source_address": "127.0.0.1",
    "client_source_port": "56078",
}


def matched(match: str, client: dict[str, str | None] = CLIENT) -> bool:
    return is_match(parse_subscription("sub", {"match": match}), client)


def selected(*subscriptions: dict[str, str]) -> MergedSubscriptions:
    all_of_them = Subscriptions()
    all_of_them.change([parse_subscription(f"sub-{n}", values) for n, values in enumerate(subscriptions)])
    return all_of_them.select(CLIENT)


# ClientMetricsInstanceMetadataTest


def test_is_match_valid() -> None:
    assert matched("")
    for criterion in (
        "client_id=.*",
        "client_id=producer-1",
        "client_id=producer.*",
        "client_instance_id=ABEiM0RVZneImaq7zN3u_w",
        "client_software_name=apache-kafka-java",
        "client_software_version=3.5.2",
        "client_source_address=127.0.0.1",
        "client_source_port=56078",
    ):
        assert matched(criterion), criterion


def test_is_match_multiple_pattern_valid() -> None:
    criteria = [f"{key}={value}" for key, value in CLIENT.items()]
    assert matched(",".join(criteria))


def test_is_match_mismatch_fail() -> None:
    for criterion in (
        "client_id=producer-2",
        "client_instance_id=ABEiM0RVZneImaq7zN3u_wrandom",
        "client_software_name=apache-kafka-java-1",
        "client_software_version=3.5.x",
        "client_source_address=1.2.3.4",
        "client_source_port=8080",
    ):
        assert not matched(criterion), criterion
        assert not matched(f"client_id=.*,{criterion}"), criterion


def test_is_match_with_invalid_key_fail() -> None:
    for key in ("client", "*"):
        assert not matched("client_id=.*", {key: "producer-1"})


def test_is_match_with_null_client_info() -> None:
    assert not matched("client_software_name=.*", {**CLIENT, "client_software_name": None})
    assert not matched("client_software_version=.*", {**CLIENT, "client_software_version": None})


# ClientMetricsManager.createClientInstance


def test_no_subscription_selects_no_metrics_at_the_default_interval() -> None:
    assert (selected().metrics, selected().interval_ms) == ((), 300_000)


def test_shortest_interval_including_the_default_wins() -> None:
    assert selected({"interval.ms": "1000"}, {"interval.ms": "2000"}).interval_ms == 1000
    assert selected({"interval.ms": "3600000"}).interval_ms == 300_000


def test_subscription_without_metrics_lowers_the_interval() -> None:
    selection = selected({"interval.ms": "1000"}, {"metrics": "a"})
    assert (selection.metrics, selection.interval_ms) == (("a",), 1000)


def test_unmatched_subscriptions_are_ignored() -> None:
    selection = selected({"interval.ms": "1000", "metrics": "a", "match": "client_id=x"}, {"metrics": "b"})
    assert (selection.metrics, selection.interval_ms) == (("b",), 300_000)


def test_star_replaces_all_other_prefixes() -> None:
    selection = selected({"metrics": "a,b", "interval.ms": "30000"}, {"metrics": "c,*"})
    assert (selection.metrics, selection.requested_metrics, selection.interval_ms) == (("*",), ("*",), 30_000)


def test_trailing_star_is_an_ordinary_prefix() -> None:
    assert selected({"metrics": "org.*"}).metrics == ("org.*",)


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


def test_each_change_increments_version() -> None:
    subscriptions = Subscriptions()
    first, second = parse_subscription("one", {}), parse_subscription("two", {})
    subscriptions.change([first, second])
    assert (subscriptions.version, len(subscriptions)) == (1, 2)
    subscriptions.change([], ["one"])
    assert (subscriptions.version, len(subscriptions), "one" in subscriptions, "two" in subscriptions) == (
        2,
        1,
        False,
        True,
    )
    with pytest.raises(KeyError):
        subscriptions.change([], ["one"])


def test_selection_cache_is_bounded() -> None:
    subscriptions = Subscriptions()
    subscriptions.change([parse_subscription(f"s{n}", {"match": f"client_id=.*{n}-.*"}) for n in range(13)])
    for combination in range(2**13):
        client_id = "".join(f"{n}-" for n in range(13) if combination >> n & 1)
        subscriptions.select({"client_id": client_id})
    assert len(subscriptions._selections) <= 4096


@given(st.lists(st.text("ab.", max_size=4), unique=True), st.text("ab.", max_size=6))
def test_removing_covered_prefixes_keeps_matched_metrics(prefixes: list[str], metric: str) -> None:
    kept = without_covered(prefixes)
    assert any(map(metric.startswith, kept)) == any(map(metric.startswith, prefixes))
    assert list(kept) == [prefix for prefix in prefixes if prefix in kept]
    assert not any(a != b and a.startswith(b) for a in kept for b in kept)
