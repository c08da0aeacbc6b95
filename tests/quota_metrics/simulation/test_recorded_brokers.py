"""The windows of a recording's brokers, from rows of cluster_facts."""

from __future__ import annotations

from typing import Any

from quota_metrics.simulation.usage import BrokerWindow
from quota_metrics.what_if.recording import GivenWindow, recorded_brokers
from quota_metrics.windows import QuotaWindow


def fact(broker_id: int, since_ms: int, samples: int, release: str = "4.3", callback_class: str = "") -> dict[str, Any]:
    return {
        "broker_id": broker_id,
        "since_ms": str(since_ms),
        "release": release,
        "samples": samples,
        "window_ms": 1000,
        "callback_class": callback_class,
    }


def windows(*facts: dict[str, Any], override: GivenWindow = GivenWindow()) -> list[BrokerWindow]:
    """At the brokers 1 and 2, since 100."""
    recorded = recorded_brokers(facts, 100, override).windows
    return [recorded.at(1), recorded.at(2)]


def test_without_facts_kafkas_default_is_replayed() -> None:
    assert windows() == [BrokerWindow(QuotaWindow())] * 2
    assert windows(fact(1, 5, 0), fact(2, 5, 1)) == [BrokerWindow(QuotaWindow())] * 2  # not described, and invalid


def test_brokers_may_differ_and_an_unknown_one_is_as_another() -> None:
    assert windows(fact(1, 5, 31), fact(2, 5, 21, "3.7")) == [
        BrokerWindow(QuotaWindow(31)),
        BrokerWindow(QuotaWindow(21, before_3_8=True)),
    ]
    assert windows(fact(1, 5, 31)) == [BrokerWindow(QuotaWindow(31))] * 2


def test_rates_before_a_change_of_the_window_say_nothing_of_it() -> None:
    before, meanwhile = windows(fact(1, 5, 11), fact(1, 50, 31), fact(2, 5, 11), fact(2, 150, 31))
    assert before == BrokerWindow(QuotaWindow(31))
    assert meanwhile == BrokerWindow(QuotaWindow(31), is_recorded=False)


def test_given_window_replaces_what_the_brokers_have() -> None:
    only_samples = GivenWindow(samples=21)
    assert windows(fact(1, 5, 31), override=only_samples)[0] == BrokerWindow(QuotaWindow(21), is_recorded=False)
    assert windows(fact(1, 5, 21), override=only_samples)[0] == BrokerWindow(QuotaWindow(21))
    assert windows(override=only_samples)[0] == BrokerWindow(QuotaWindow(21), is_recorded=False)


def test_classes_are_the_newest_of_each_broker() -> None:
    facts = [fact(1, 5, 11, callback_class="Old"), fact(1, 6, 11, callback_class="New"), fact(2, 5, 11)]
    assert recorded_brokers(facts, 100, GivenWindow()).callback_classes == ("New",)
