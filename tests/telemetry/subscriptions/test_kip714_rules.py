"""telemetry/subscriptions/kip714_rules.py: Kafka's ClientMetricsManagerTest, and where we differ on purpose.

Where that test uses two threads, this one sends two requests in one millisecond, because the rules have no threads. The
test's counts of JMX metrics have no counterpart.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from exporters.model import Connection
from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.kip714_rules import RESERVED_IDS, ZERO_ID, ClientMetrics, Instance, PushRequest
from telemetry.subscriptions.payer_budgets import Caller
from telemetry.wire.errors import ErrorCode
from tests.kit.telemetry_requests import subscription_id
from tests.oracle.telemetry_oracle import run

NOW_MS = 1_700_000_000_000
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
    """The rules and one client's requests to them; the test sets `now_ms`."""

    def __init__(self, **subscriptions: dict[str, str]) -> None:
        numbers = itertools.count(1)
        self.rules = ClientMetrics(new_id=lambda: next(numbers).to_bytes(16, "big"), max_instances=100)
        self.now_ms = NOW_MS
        self.connection = CONNECTION
        self.rules.replace_all(subscriptions, NOW_MS)

    def caller(self, connection_id: str, client_id: str | None = "producer-1") -> Caller:
        return Caller(self.connection, client_id, connection_id)

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


Step = Callable[[Broker], None]
INTERVAL_MS = 30_000  # of SUB_1


def get(code: ErrorCode = NONE, **request: Any) -> Step:
    def ask(broker: Broker) -> None:
        assert broker.get(**request) is code

    return ask


def push(code: ErrorCode = NONE, **request: Any) -> Step:
    def ask(broker: Broker) -> None:
        assert broker.push(**request) is code

    return ask


def later(ms: int = INTERVAL_MS) -> Step:
    def wait(broker: Broker) -> None:
        broker.now_ms += ms

    return wait


def subscribed(**subscriptions: dict[str, str]) -> Step:
    def update(broker: Broker) -> None:
        broker.rules.replace_all({**broker.rules.resources, **subscriptions}, broker.now_ms)

    return update


def disconnected(connection_id: str) -> Step:
    return lambda broker: broker.rules.instances.disconnected(connection_id)


WRONG: dict[str, Any] = {"subscription": 1234, "compression_type": 10, "too_large": True}
SEQUENCES: dict[str, list[Step]] = {
    "a get in each interval": [get(), later(), get()],
    "a get too early": [get(), get(THROTTLED), later(INTERVAL_MS - 1), get(THROTTLED), later(1), get()],
    "a get right after a push": [push(), get(THROTTLED)],
    "two gets of a new client at once": [get(connection_id="c1"), get(THROTTLED, connection_id="c2")],
    "two gets after a change at once": [
        get(),
        subscribed(other={"metrics": "a"}),
        get(connection_id="c1"),
        get(THROTTLED, connection_id="c2"),
    ],
    "a get of a terminated client": [push(terminating=True), later(), get()],
    "a push in each interval": [get(), push(), later(), push()],
    "a push to a broker that does not know the client": [push()],
    "a push too early": [get(), push(), push(THROTTLED)],
    "a get admits one push": [push(), later(), get(), later(1), push(), push(THROTTLED)],
    "two pushes of a new client at once": [push(connection_id="c1"), push(THROTTLED, connection_id="c2")],
    "an unknown subscription": [get(), push(UNKNOWN_SUBSCRIPTION_ID, subscription=1234), get()],
    "a codec": [get(), push(UNSUPPORTED_COMPRESSION_TYPE, compression_type=10), get()],
    "a payload too large": [get(), push(TOO_LARGE, too_large=True), get(THROTTLED)],
    "the order of the checks": [
        push(UNKNOWN_SUBSCRIPTION_ID, **WRONG),
        push(THROTTLED, **WRONG),
        later(),
        push(UNSUPPORTED_COMPRESSION_TYPE, compression_type=10, too_large=True),
        later(),
        push(terminating=True),
        push(INVALID_REQUEST, **WRONG),
    ],
    "a refused push counts, the get after it does not": [
        push(UNKNOWN_SUBSCRIPTION_ID, subscription=1234),
        get(),
        later(INTERVAL_MS - 1),
        push(THROTTLED),
        later(1),
        push(),
    ],
    "a terminating push is the last": [get(), push(), push(terminating=True), push(INVALID_REQUEST, terminating=True)],
    "only one push after it is refused": [push(terminating=True), later(), push(INVALID_REQUEST), push()],
    "a terminating push is never too early and begins no interval": [
        push(),
        later(1),
        push(terminating=True),
        later(INTERVAL_MS - 1),
        push(INVALID_REQUEST),
        push(),
    ],
    "a client that was disconnected is new": [get(), push(), disconnected("c1"), push()],
    "a terminated client under new subscriptions is new": [
        push(terminating=True),
        subscribed(other={"metrics": "a"}),
        push(),
    ],
    "the end of an earlier connection ends the client": [
        get(connection_id="c1"),
        subscribed(other={"metrics": "a"}),
        get(connection_id="c2"),
        disconnected("c1"),
        get(connection_id="c2"),
    ],
    "another connection's end changes nothing": [get(), disconnected("another"), get(THROTTLED)],
    "a terminated client that expired is new": [
        subscribed(sub={"metrics": "a", "interval.ms": "100"}),
        push(terminating=True),
        later(60_000),
        push(),
    ],
    # deliberate differences from Kafka
    "a refused terminating push terminates nothing": [
        push(UNKNOWN_SUBSCRIPTION_ID, subscription=1234, terminating=True),
        later(),
        push(),
    ],
    "another connection's terminating push terminates nothing": [
        get(),
        push(terminating=True, connection_id="c2"),
        later(),
        push(),
    ],
}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_requests_are_answered_as_by_kafka(sequence: str) -> None:
    broker = Broker(sub=SUB_1)
    for step in SEQUENCES[sequence]:
        step(broker)


def test_granted_instance_has_the_subscription_and_an_id_of_its_own() -> None:
    instance = Broker(sub=SUB_1).granted(ZERO_ID)
    assert instance.client_instance_id not in RESERVED_IDS
    assert set(instance.selection.requested_metrics) == {"org.apache.kafka.producer.", "org.apache.kafka.consumer."}
    assert instance.selection.interval_ms == INTERVAL_MS
    assert instance.subscription_id == subscription_id(
        instance.selection.metrics, INTERVAL_MS, instance.client_instance_id
    )
    reserved = bytes(15) + b"\x01"
    assert Broker().granted(reserved).client_instance_id == reserved


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


def test_subscription_change_admits_early_get_with_original_attributes() -> None:
    broker = Broker(sub=SUB_1)
    broker.granted()
    assert broker.push() is NONE
    broker.rules.replace_all({"sub": SUB_1, "other": {"match": "client_id=nobody", "interval.ms": "100"}}, NOW_MS)
    code, instance = broker.rules.get(ID, broker.caller("c1", client_id="nobody"), NOW_MS)
    assert code is NONE
    assert instance.selection.interval_ms == 30_000


@pytest.mark.parametrize("client_instance_id", sorted(RESERVED_IDS))
def test_push_telemetry_client_instance_id_invalid(client_instance_id: bytes) -> None:
    broker = Broker(sub=SUB_1)
    assert broker.push(client_instance_id) is INVALID_REQUEST
    assert len(broker.rules.instances) == 0


@pytest.mark.parametrize("terminating", [False, True])
def test_other_payers_use_of_an_id_has_no_effect_on_the_instance(terminating: bool) -> None:
    broker, mallory = Broker(sub=SUB_1), replace(CONNECTION, principal="mallory")
    mine = broker.granted()
    broker.connection = mallory
    assert broker.granted(connection_id="c2") is not mine
    for _ in range(3):
        assert broker.push(terminating=terminating, connection_id="c2") is NONE
    broker.rules.instances.disconnected("c2")
    broker.connection = CONNECTION
    assert broker.instance() is mine
    assert (mine.terminating, mine.last_get_ms, mine.last_push_ms) == (False, NOW_MS, 0)
    assert broker.push() is NONE


# --- subscriptions read periodically from a cluster


TWO = {"one": SUB_1, "two": {"metrics": "a"}}
# what is read, the names of those in force after it, and their version
READINGS: dict[str, list[tuple[dict[str, dict[str, str]], set[str], int]]] = {
    "what differs": [(TWO, {"one", "two"}, 1), ({"two": {"metrics": "b"}}, {"two"}, 2)],
    "what is equal": [(TWO, {"one", "two"}, 1), (dict(reversed(TWO.items())), {"one", "two"}, 1)],
    "what becomes invalid": [
        ({"sub": SUB_1}, {"sub"}, 1),
        ({"sub": {"match": "client_id=["}}, set(), 2),
        ({}, set(), 2),
    ],
    "what has no values": [({"sub": {}}, set(), 0)],
}


@pytest.mark.parametrize("reading", READINGS)
def test_each_reading_that_changes_something_is_one_version(reading: str) -> None:
    rules, changed_at_ms = Broker().rules, 0
    for at_ms, (resources, names, version) in enumerate(READINGS[reading], NOW_MS):
        if version != rules.subscriptions.version:
            changed_at_ms = at_ms
        rules.replace_all(resources, at_ms)
        assert (set(rules.subscriptions), rules.subscriptions.version) == (names, version)
        assert rules.changed_at_ms == changed_at_ms


def test_invalid_subscription_is_skipped_and_logged_once() -> None:
    broker = Broker()
    with capture_logs() as logs:
        for _ in range(3):
            broker.rules.replace_all({"good": SUB_1, "bad": {"match": r"client_id=\p{L}"}}, NOW_MS)
    assert (len(broker.rules.subscriptions), broker.rules.subscriptions.version) == (1, 1)
    assert [(entry["log_level"], entry["name"]) for entry in logs] == [("warning", "bad")]
    assert r"character property: \p" in logs[0]["error"]


@pytest.mark.java
def test_random_requests_are_answered_as_by_kafka(jvm: Jvm) -> None:
    """`make oracle` runs more."""
    differences, deviations = run(jvm, seed=1, cases=100)
    assert differences == []
    assert deviations > 10
