"""PushTelemetry by telemetry/subscriptions/kip714_rules.py: ClientMetricsManagerTest, and where we differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from telemetry.subscriptions.kip714_rules import RESERVED_IDS
from telemetry.wire.errors import ErrorCode
from tests.telemetry.subscriptions.broker import (
    CONNECTION,
    ID,
    INVALID_REQUEST,
    NONE,
    NOW_MS,
    SUB_1,
    THROTTLED,
    TOO_LARGE,
    UNKNOWN_SUBSCRIPTION_ID,
    UNSUPPORTED_COMPRESSION_TYPE,
    Broker,
)


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


def test_push_after_a_get_is_accepted_once() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push() is NONE
    broker.now_ms += 30_000
    assert broker.get() is NONE
    broker.now_ms += 1
    assert [broker.push(), broker.push()] == [NONE, THROTTLED]


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


def test_only_the_first_push_after_terminating_is_refused() -> None:
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
def test_all_codecs_are_accepted(compression_type: int) -> None:
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
def test_get_telemetry_after_push_error(refusal: dict[str, Any], after: ErrorCode) -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(**refusal) is not NONE
    assert broker.get() is after


def test_checks_run_in_kafkas_order() -> None:
    broker = Broker(sub=SUB_1)
    wrong: dict[str, Any] = {"subscription": 1234, "compression_type": 10, "too_large": True}
    assert broker.push(subscription=1234, compression_type=10, too_large=True) is UNKNOWN_SUBSCRIPTION_ID
    assert broker.push(**wrong) is THROTTLED
    broker.now_ms += 30_000
    assert broker.push(compression_type=10, too_large=True) is UNSUPPORTED_COMPRESSION_TYPE
    broker.now_ms += 30_000
    assert broker.push(terminating=True) is NONE
    assert broker.push(**wrong) is INVALID_REQUEST


def test_refused_push_counts_against_the_interval() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(subscription=1234) is UNKNOWN_SUBSCRIPTION_ID
    assert broker.get() is NONE  # exempt, and it does not count as a GET
    broker.now_ms += 29_999
    assert broker.push() is THROTTLED
    broker.now_ms += 1
    assert broker.push() is NONE


def test_terminating_push_is_never_throttled_and_keeps_last_push_time() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push() is NONE
    broker.now_ms += 1
    assert broker.push(terminating=True) is NONE
    assert broker.instance().last_push_ms == NOW_MS


# --- deliberate differences from Kafka


def test_refused_terminating_push_does_not_terminate_the_instance() -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(subscription=1234, terminating=True) is UNKNOWN_SUBSCRIPTION_ID
    assert not broker.instance().terminating
    broker.now_ms += 30_000
    assert broker.push() is NONE


def test_terminating_push_of_another_connection_does_not_end_the_instance() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push(terminating=True, connection_id="c2") is NONE
    assert not broker.instance().terminating
    broker.now_ms += 30_000
    assert broker.push() is NONE


@pytest.mark.parametrize("terminating", [False, True])
def test_other_payers_use_of_an_id_has_no_effect_on_the_instance(terminating: bool) -> None:
    broker, mallory = Broker(sub=SUB_1), replace(CONNECTION, principal="mallory")
    mine = broker.granted()
    broker.connection = mallory
    assert broker.granted(connection_id="c2") is not mine
    for _ in range(3):
        assert broker.push(terminating=terminating, connection_id="c2") is NONE
    broker.rules.disconnected("c2")
    broker.connection = CONNECTION
    assert broker.instance() is mine
    assert (mine.terminating, mine.last_get_ms, mine.last_push_ms) == (False, NOW_MS, 0)
    assert broker.push() is NONE
