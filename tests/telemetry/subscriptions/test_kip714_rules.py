"""telemetry/subscriptions/kip714_rules.py: Kafka's ClientMetricsManagerTest, and where we differ on purpose.

Where that test uses two threads, this one sends two requests in one millisecond, because the rules have no threads. The
test's counts of JMX metrics have no counterpart.
"""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from telemetry.subscriptions.java.hash import subscription_id, uuid_text
from telemetry.subscriptions.kip714_rules import RESERVED_IDS, ZERO_ID, ClientMetrics
from telemetry.subscriptions.payers import Caller
from telemetry.wire.errors import InvalidSubscriptionError
from tests.telemetry.subscriptions.broker import (
    CONNECTION,
    DEFAULT_INTERVAL_MS,
    ID,
    INVALID_REQUEST,
    NONE,
    NOW_MS,
    OTHER_ID,
    SUB_1,
    THROTTLED,
    Broker,
)

# --- subscriptions


def test_update_subscription() -> None:
    broker = Broker(sub=SUB_1 | {"match": "client_id=producer-1"})
    assert "sub" in broker.rules.subscriptions
    assert (broker.rules.subscriptions.version, len(broker.rules.instances)) == (1, 0)
    selection = broker.rules.subscriptions.select({"client_id": "producer-1"})
    assert set(selection.metrics) == {"org.apache.kafka.producer.", "org.apache.kafka.consumer."}
    assert selection.interval_ms == 30_000
    assert broker.rules.subscriptions.select({"client_id": "producer-2"}).metrics == ()


def test_update_subscription_with_empty_properties() -> None:
    broker = Broker(sub={})
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 0)


def test_update_subscription_with_invalid_metrics_properties() -> None:
    broker = Broker()
    with pytest.raises(InvalidSubscriptionError) as error:
        broker.rules.update("sub", {"random": "random"}, NOW_MS)
    assert error.value.code is INVALID_REQUEST
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 0)


def test_update_subscription_with_properties_deletion() -> None:
    broker = Broker(sub={"interval.ms": "100"})
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (1, 1)
    broker.rules.update("sub", {}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 2)


def test_unchanged_update_increments_version() -> None:
    broker = Broker(sub=SUB_1)
    broker.rules.update("sub", SUB_1, NOW_MS)
    assert broker.rules.subscriptions.version == 2


# --- GetTelemetrySubscriptions


def test_get_telemetry() -> None:
    broker = Broker(sub=SUB_1)
    instance = broker.granted(ZERO_ID)
    assert instance.client_instance_id not in RESERVED_IDS
    assert set(instance.selection.requested_metrics) == {"org.apache.kafka.producer.", "org.apache.kafka.consumer."}
    assert instance.selection.interval_ms == 30_000
    assert instance.subscription_id == subscription_id(instance.selection.metrics, 30_000, instance.client_instance_id)


def test_get_telemetry_without_subscription() -> None:
    instance = Broker().granted(ZERO_ID)
    assert instance.selection.requested_metrics == ()
    assert instance.selection.interval_ms == DEFAULT_INTERVAL_MS
    assert instance.subscription_id != 0


def test_get_telemetry_after_push_interval_time() -> None:
    broker = Broker()
    assert broker.get() is NONE
    broker.now_ms += DEFAULT_INTERVAL_MS
    assert broker.get() is NONE


def test_get_telemetry_all_metrics_subscribed_subscription() -> None:
    broker = Broker(one=SUB_1, two={"metrics": "*"})
    instance = broker.granted(ZERO_ID)
    assert instance.selection.requested_metrics == ("*",)
    assert instance.selection.interval_ms == 30_000


def test_get_telemetry_same_client_immediate_retry_fail() -> None:
    broker = Broker()
    assert broker.get() is NONE
    assert broker.get() is THROTTLED
    assert broker.instance().last_known_error is NONE
    broker.now_ms += DEFAULT_INTERVAL_MS - 1
    assert broker.get() is THROTTLED


def test_get_telemetry_same_client_immediate_retry_after_push_fail() -> None:
    subscribed = Broker(sub=SUB_1).granted()
    second = Broker(sub=SUB_1)
    assert second.push(subscription=subscribed.subscription_id) is NONE
    assert second.get() is THROTTLED


def test_get_telemetry_update_subscription() -> None:
    broker = Broker(one=SUB_1)
    before = broker.granted().subscription_id
    broker.rules.update("two", {"metrics": "org.apache.kafka.other"}, NOW_MS)
    assert broker.granted().subscription_id != before


def test_get_telemetry_concurrent_request_new_client_instance() -> None:
    broker = Broker()
    assert [broker.get(connection_id="c1"), broker.get(connection_id="c2")] == [NONE, THROTTLED]


def test_get_telemetry_concurrent_request_after_subscription_update() -> None:
    broker = Broker()
    assert broker.get() is NONE
    broker.rules.update("sub", SUB_1, NOW_MS)
    assert [broker.get(connection_id="c1"), broker.get(connection_id="c2")] == [NONE, THROTTLED]


def test_reserved_id_one_is_accepted() -> None:
    reserved = bytes(15) + b"\x01"
    assert Broker().granted(reserved).client_instance_id == reserved


def test_get_of_a_terminating_client_is_accepted() -> None:
    broker = Broker()
    assert broker.push(terminating=True) is NONE
    broker.now_ms += DEFAULT_INTERVAL_MS
    assert broker.get() is NONE


def test_generated_ids_are_unused_and_have_no_leading_dash() -> None:
    taken = OTHER_ID
    with_dash = bytes.fromhex("f80000000000000000000000000000ff")
    assert uuid_text(with_dash).startswith("-")
    free = bytes.fromhex("00000000000040000000000000000022")
    candidates = iter([ZERO_ID, bytes(15) + b"\x01", with_dash, taken, free])
    rules = ClientMetrics(new_id=lambda: next(candidates))
    caller = Caller(CONNECTION, None, "c1")
    rules.get(taken, caller, NOW_MS)
    assert rules.get(ZERO_ID, caller, NOW_MS)[1].client_instance_id == free


# --- cache


def test_cache_expiration_task_cancelled_on_instance_update() -> None:
    broker = Broker(sub={"metrics": "a", "interval.ms": "100"})
    broker.granted()
    broker.now_ms += 59_999
    broker.rules.update("sub", {"metrics": "b", "interval.ms": "100"}, NOW_MS)
    broker.granted()
    broker.rules.expire(NOW_MS + 60_000)
    assert broker.rules.instances._by_connection == {"c1": ID}


def test_expired_instance_is_recreated_without_a_timer() -> None:
    broker = Broker(sub={"metrics": "a", "interval.ms": "100"})
    assert broker.push(terminating=True) is NONE
    broker.now_ms += 60_000
    assert broker.push() is NONE


def test_client_connection_disconnect() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    broker.rules.disconnected("c1")
    assert len(broker.rules.instances) == 0
    assert broker.push() is NONE


def test_disconnect_of_unknown_connection_is_ignored() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    broker.rules.disconnected("another")
    assert len(broker.rules.instances) == 1


def test_subscription_change_admits_early_get_with_original_attributes() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    broker.rules.update("other", {"match": "client_id=nobody", "interval.ms": "100"}, NOW_MS)
    code, instance = broker.rules.get(ID, broker.caller("c1", client_id="nobody"), NOW_MS)
    assert code is NONE
    assert instance.selection.interval_ms == 30_000


# --- subscriptions read periodically from a cluster


def test_replace_all_is_one_version() -> None:
    broker = Broker()
    broker.rules.replace_all({"one": SUB_1, "two": {"metrics": "a"}}, NOW_MS)
    assert (broker.rules.subscriptions.version, len(broker.rules.subscriptions)) == (1, 2)
    broker.rules.replace_all({"two": {"metrics": "b"}}, NOW_MS + 5)
    assert (broker.rules.subscriptions.version, len(broker.rules.subscriptions)) == (2, 1)
    assert broker.granted().selection.metrics == ("b",)
    assert broker.rules.changed_at_ms == NOW_MS + 5


def test_replace_all_with_equal_subscriptions_changes_nothing() -> None:
    broker = Broker()
    broker.rules.replace_all({"one": SUB_1, "two": {"metrics": "a"}}, NOW_MS)
    broker.granted()
    broker.rules.replace_all({"two": {"metrics": "a"}, "one": dict(SUB_1)}, NOW_MS + 1)
    assert (broker.rules.subscriptions.version, broker.rules.changed_at_ms) == (1, NOW_MS)
    assert broker.get() is THROTTLED


def test_invalid_subscription_is_skipped_and_logged_once() -> None:
    broker = Broker()
    with capture_logs() as logs:
        for _ in range(3):
            broker.rules.replace_all({"good": SUB_1, "bad": {"match": r"client_id=\p{L}"}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (1, 1)
    assert [(entry["log_level"], entry["name"]) for entry in logs] == [("warning", "bad")]
    assert r"character property: \p" in logs[0]["error"]


def test_subscription_that_becomes_invalid_is_removed() -> None:
    broker = Broker()
    broker.rules.replace_all({"sub": SUB_1}, NOW_MS)
    broker.rules.replace_all({"sub": {"match": "client_id=["}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 2)
    broker.rules.replace_all({}, NOW_MS)
    assert broker.rules.subscriptions.version == 2


def test_resource_without_values_is_not_a_subscription() -> None:
    broker = Broker()
    broker.rules.replace_all({"sub": {}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 0)
