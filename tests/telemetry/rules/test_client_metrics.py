"""telemetry/rules/client_metrics.py: Kafka's ClientMetricsManagerTest, case by case, and where we differ on purpose.

What that test does with two threads is done here by two requests in one millisecond: there are no threads in the rules.
Its counts of JMX metrics have no counterpart.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from structlog.testing import capture_logs

from exporters.model import Connection
from telemetry.rules.client_instances import Caller, Instance
from telemetry.rules.client_metrics import RESERVED_IDS, ZERO_ID, ClientMetrics, PushRequest
from telemetry.rules.java.hash import subscription_id, uuid_text
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError

NOW_MS = 1_700_000_000_000
DEFAULT_INTERVAL_MS = 300_000
ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
OTHER_ID = bytes.fromhex("00112233445566778899aabbccddeeff")
SUB_1 = {"metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.", "interval.ms": "30000"}
CONNECTION = Connection("cluster", "PLAINTEXT", "alice", "127.0.0.1", 56078, "apache-kafka-java", "3.5.2", 1)

NONE = ErrorCode.NONE
INVALID_REQUEST = ErrorCode.INVALID_REQUEST
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
UNKNOWN_SUBSCRIPTION_ID = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
UNSUPPORTED_COMPRESSION_TYPE = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
TOO_LARGE = ErrorCode.TELEMETRY_TOO_LARGE


class Broker:
    """The rules, and one client's requests to them at a time that the test sets."""

    def __init__(self, **subscriptions: dict[str, str]) -> None:
        numbers = itertools.count(1)
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"), max_instances=100)
        self.now_ms = NOW_MS
        for name, values in subscriptions.items():
            self.rules.update(name, values, NOW_MS)

    def caller(self, connection_id: str, client_id: str | None = "producer-1") -> Caller:
        return Caller(CONNECTION, client_id, connection_id)

    def get(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> ErrorCode:
        return self.rules.get(client_instance_id, self.caller(connection_id), self.now_ms)[0]

    def granted(self, client_instance_id: bytes = ID, connection_id: str = "c1") -> Instance:
        code, instance = self.rules.get(client_instance_id, self.caller(connection_id), self.now_ms)
        assert code is NONE
        return instance

    def push(
        self,
        client_instance_id: bytes = ID,
        *,
        subscription: int | None = None,
        terminating: bool = False,
        compression_type: int = 0,
        too_large: bool = False,
        connection_id: str = "c1",
    ) -> ErrorCode:
        if subscription is None:
            selection = self.rules.subscriptions.select({"client_id": "producer-1"})
            subscription = subscription_id(selection.metrics, selection.interval_ms, client_instance_id)
        request = PushRequest(
            client_instance_id, subscription, terminating, compression_type, self.caller(connection_id)
        )
        return self.rules.push(request, self.now_ms, too_large)[0]

    def instance(self, client_instance_id: bytes = ID) -> Instance:
        instance = self.rules.instances.touch(client_instance_id, self.now_ms)
        assert instance is not None
        return instance


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


def test_the_same_subscription_again_is_a_new_version() -> None:
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


def test_the_reserved_id_one_is_taken_as_it_is() -> None:
    one = bytes(15) + b"\x01"
    assert Broker().granted(one).client_instance_id == one


def test_a_get_is_not_refused_because_the_client_is_terminating() -> None:
    broker = Broker()
    assert broker.push(terminating=True) is NONE
    broker.now_ms += DEFAULT_INTERVAL_MS
    assert broker.get() is NONE


def test_new_ids_are_free_and_no_command_line_takes_them_for_an_option() -> None:
    taken = OTHER_ID
    with_dash = bytes.fromhex("f80000000000000000000000000000ff")
    assert uuid_text(with_dash).startswith("-")
    free = bytes.fromhex("00000000000040000000000000000022")
    candidates = iter([ZERO_ID, bytes(15) + b"\x01", with_dash, taken, free])
    rules = ClientMetrics(new_id=lambda: next(candidates))
    caller = Caller(CONNECTION, None, "c1")
    rules.get(taken, caller, NOW_MS)
    assert rules.get(ZERO_ID, caller, NOW_MS)[1].client_instance_id == free


# --- PushTelemetry


def test_push_telemetry() -> None:
    broker = Broker(sub=SUB_1)
    instance = broker.granted()
    assert broker.push(subscription=instance.subscription_id) is NONE
    assert (instance.terminating, instance.last_known_error, instance.last_push_ms) == (False, NONE, NOW_MS)


def test_push_telemetry_on_new_server() -> None:
    subscribed = Broker(sub=SUB_1).granted()
    assert Broker(sub=SUB_1).push(subscription=subscribed.subscription_id) is NONE


def test_push_telemetry_after_push_interval_time() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    broker.now_ms += 30_000
    assert broker.push() is NONE


@pytest.mark.parametrize("client_instance_id", sorted(RESERVED_IDS))
def test_push_telemetry_client_instance_id_invalid(client_instance_id: bytes) -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(client_instance_id) is INVALID_REQUEST
    assert len(broker.rules.instances) == 0


def test_push_telemetry_throttle_error() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    assert broker.push() is THROTTLED
    assert broker.instance().last_known_error is THROTTLED


def test_push_telemetry_terminating_flag() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    assert broker.push(terminating=True) is NONE
    assert broker.instance().terminating


def test_push_telemetry_next_request_post_terminating_flag() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(terminating=True) is NONE
    assert broker.push(terminating=True) is INVALID_REQUEST
    assert broker.instance().terminating
    assert broker.instance().last_known_error is INVALID_REQUEST


def test_a_push_after_the_terminating_one_is_refused_and_the_one_after_is_judged_again() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(terminating=True) is NONE
    broker.now_ms += 30_000
    assert broker.push() is INVALID_REQUEST
    assert broker.push() is NONE


def test_push_telemetry_subscription_id_invalid() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(subscription=1234) is UNKNOWN_SUBSCRIPTION_ID
    assert broker.instance().last_known_error is UNKNOWN_SUBSCRIPTION_ID


@pytest.mark.parametrize("compression_type", [-1, 5, 100])
def test_push_telemetry_compression_type_invalid(compression_type: int) -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(compression_type=compression_type) is UNSUPPORTED_COMPRESSION_TYPE
    assert broker.instance().last_known_error is UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("compression_type", range(5))
def test_all_codecs_are_taken(compression_type: int) -> None:
    assert Broker(sub=SUB_1).push(compression_type=compression_type) is NONE


def test_push_telemetry_metrics_too_large() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(too_large=True) is TOO_LARGE
    assert broker.instance().last_known_error is TOO_LARGE


def test_push_telemetry_concurrent_request_new_client_instance() -> None:
    broker = Broker(sub=SUB_1)
    assert [broker.push(connection_id="c1"), broker.push(connection_id="c2")] == [NONE, THROTTLED]


def test_push_telemetry_concurrent_request_after_subscription_update() -> None:
    broker = Broker(sub=SUB_1)
    stale = broker.granted(connection_id="c1").subscription_id
    broker.rules.update("sub", {"metrics": "*", "interval.ms": "30000"}, NOW_MS)
    codes = [broker.push(subscription=stale, connection_id=connection_id) for connection_id in ("c2", "c3")]
    assert codes == [UNKNOWN_SUBSCRIPTION_ID, THROTTLED]
    assert broker.rules.instances._by_connection == {"c1": ID, "c2": ID}


@pytest.mark.parametrize(
    ("refusal", "after"),
    [
        ({"subscription": 1234}, NONE),
        ({"compression_type": 10}, NONE),
        ({"too_large": True}, THROTTLED),
    ],
)
def test_get_telemetry_after_a_push_error(refusal: dict[str, Any], after: ErrorCode) -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(**refusal) is not NONE
    assert broker.get() is after


def test_the_checks_come_in_kafkas_order() -> None:
    broker = Broker(sub=SUB_1)
    wrong: dict[str, Any] = {"subscription": 1234, "compression_type": 10, "too_large": True}
    assert broker.push(subscription=1234, compression_type=10, too_large=True) is UNKNOWN_SUBSCRIPTION_ID
    assert broker.push(**wrong) is THROTTLED
    broker.now_ms += 30_000
    assert broker.push(compression_type=10, too_large=True) is UNSUPPORTED_COMPRESSION_TYPE
    broker.now_ms += 30_000
    assert broker.push(terminating=True) is NONE
    assert broker.push(**wrong) is INVALID_REQUEST


def test_a_push_that_fails_uses_up_its_time() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(subscription=1234) is UNKNOWN_SUBSCRIPTION_ID
    assert broker.get() is NONE  # exempt, and it does not count as a GET
    broker.now_ms += 29_999
    assert broker.push() is THROTTLED
    broker.now_ms += 1
    assert broker.push() is NONE


def test_a_terminating_push_is_never_too_early_and_moves_no_time() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push() is NONE
    broker.now_ms += 1
    assert broker.push(terminating=True) is NONE
    assert broker.instance().last_push_ms == NOW_MS


# --- cache


def test_cache_eviction() -> None:
    broker = Broker(sub={"metrics": "a", "interval.ms": "100"})
    broker.granted()
    broker.rules.expire(NOW_MS + 59_999)
    assert len(broker.rules.instances) == 1
    broker.rules.expire(NOW_MS + 60_000)
    assert len(broker.rules.instances) == 0


def test_cache_eviction_with_multiple_clients() -> None:
    broker = Broker(sub={"metrics": "a", "interval.ms": "100"})
    broker.granted(ID, "c1")
    broker.granted(OTHER_ID, "c2")
    broker.rules.expire(NOW_MS + 60_000)
    assert len(broker.rules.instances) == 0


def test_cache_expiration_task_cancelled_on_instance_update() -> None:
    broker = Broker(sub={"metrics": "a", "interval.ms": "100"})
    broker.granted()
    broker.now_ms += 59_999
    broker.rules.update("sub", {"metrics": "b", "interval.ms": "100"}, NOW_MS)
    broker.granted()
    broker.rules.expire(NOW_MS + 60_000)
    assert broker.rules.instances._by_connection == {"c1": ID}


def test_an_instance_whose_time_is_over_begins_anew_without_a_timer() -> None:
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


def test_disconnect_of_an_unknown_connection() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    broker.rules.disconnected("another")
    assert len(broker.rules.instances) == 1


def test_a_change_lets_every_client_come_at_once_with_the_facts_of_its_first_request() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    broker.rules.update("other", {"match": "client_id=nobody", "interval.ms": "100"}, NOW_MS)
    code, instance = broker.rules.get(ID, broker.caller("c1", client_id="nobody"), NOW_MS)
    assert code is NONE
    assert instance.selection.interval_ms == 30_000


# --- on purpose different from Kafka


def test_a_terminating_push_that_is_refused_does_not_lock_the_client_out() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(subscription=1234, terminating=True) is UNKNOWN_SUBSCRIPTION_ID
    assert not broker.instance().terminating
    broker.now_ms += 30_000
    assert broker.push() is NONE


# --- the subscriptions of a cluster, read again and again


def test_what_is_read_replaces_all_as_one_change() -> None:
    broker = Broker()
    broker.rules.replace_all({"one": SUB_1, "two": {"metrics": "a"}}, NOW_MS)
    assert (broker.rules.subscriptions.version, len(broker.rules.subscriptions)) == (1, 2)
    broker.rules.replace_all({"two": {"metrics": "b"}}, NOW_MS + 5)
    assert (broker.rules.subscriptions.version, len(broker.rules.subscriptions)) == (2, 1)
    assert broker.granted().selection.metrics == ("b",)
    assert broker.rules.changed_at_ms == NOW_MS + 5


def test_reading_the_same_again_changes_nothing() -> None:
    broker = Broker()
    broker.rules.replace_all({"one": SUB_1, "two": {"metrics": "a"}}, NOW_MS)
    broker.granted()
    broker.rules.replace_all({"two": {"metrics": "a"}, "one": dict(SUB_1)}, NOW_MS + 1)
    assert (broker.rules.subscriptions.version, broker.rules.changed_at_ms) == (1, NOW_MS)
    assert broker.get() is THROTTLED


def test_what_is_not_valid_is_left_out_and_told_once() -> None:
    broker = Broker()
    with capture_logs() as logs:
        for _ in range(3):
            broker.rules.replace_all({"good": SUB_1, "bad": {"match": r"client_id=\p{L}"}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (1, 1)
    assert [(entry["log_level"], entry["name"]) for entry in logs] == [("warning", "bad")]
    assert "'L'" in logs[0]["error"]


def test_what_becomes_invalid_is_no_subscription_any_more() -> None:
    broker = Broker()
    broker.rules.replace_all({"sub": SUB_1}, NOW_MS)
    broker.rules.replace_all({"sub": {"match": "client_id=["}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 2)
    broker.rules.replace_all({}, NOW_MS)
    assert broker.rules.subscriptions.version == 2


def test_a_resource_without_values_is_none() -> None:
    broker = Broker()
    broker.rules.replace_all({"sub": {}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (0, 0)
